# The one image: every stage and tool is a subcommand of the one binary.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
COPY schemas/go.mod schemas/go.sum schemas/
COPY producer/go.mod producer/go.sum producer/
ENV GOWORK=off CGO_ENABLED=0
RUN go mod download
COPY . .
ARG VERSION=unknown
RUN go build -trimpath -ldflags "-X main.version=${VERSION}" -o /kanjo ./cmd/kanjo

# glibc is needed although the binary is pure Go: kanjo dev loads the ClickHouse engine at run time.
FROM debian:bookworm-slim
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /kanjo /kanjo
# A new volume takes its owner from here: the deduper writes its seen-sets to /state.
RUN install -d -o 65532 -g 65532 /state
USER 65532:65532
ENTRYPOINT ["/kanjo"]
