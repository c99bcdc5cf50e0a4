module github.com/kanjo-dev/kanjo/e2e

go 1.26.0

require (
	github.com/kanjo-dev/kanjo v0.0.0
	github.com/kanjo-dev/kanjo/producer v0.0.0
	github.com/kanjo-dev/kanjo/schemas v0.0.0
)

replace (
	github.com/kanjo-dev/kanjo => ../
	github.com/kanjo-dev/kanjo/producer => ../producer
	github.com/kanjo-dev/kanjo/schemas => ../schemas
)
