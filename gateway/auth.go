package gateway

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// permission is what a gateway key may be allowed to do.
type permission string

const (
	public permission = "" // no key is asked for
	ingest permission = "ingest"
	read   permission = "read"
	admit  permission = "admit"
)

// credential returns the id and the secret of the gateway key that a request presents: Authorization: Bearer <id>.<secret>,
// or X-Kanjo-Key: <id>.<secret> for clients that cannot set the former.
func credential(h http.Header) (id, secret string, given bool) {
	token := h.Get("X-Kanjo-Key")
	if token == "" {
		scheme, rest, _ := strings.Cut(h.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return "", "", false
		}
		token = strings.TrimSpace(rest)
	}
	// Key names hold no dot, secrets may.
	id, secret, given = strings.Cut(token, ".")
	return id, secret, given && id != "" && secret != ""
}

// authenticate returns the gateway key of a request. An unknown id and a wrong secret are one answer, after the same work.
func authenticate(dir *directory.Directory, h http.Header, now time.Time) (id string, key *control.GatewayKey, p *problem) {
	id, secret, given := credential(h)
	if !given {
		return "", nil, newProblem(http.StatusUnauthorized, codeUnauthorized, "send Authorization: Bearer <key id>.<secret>")
	}
	var want [sha256.Size]byte
	key, known := dir.GatewayKey(id, now)
	if known {
		if b, err := hex.DecodeString(key.SHA256); err == nil && len(b) == len(want) {
			want = [sha256.Size]byte(b)
		} else {
			known = false
		}
	}
	got := sha256.Sum256([]byte(secret))
	if subtle.ConstantTimeCompare(got[:], want[:]) != 1 || !known {
		return "", nil, newProblem(http.StatusUnauthorized, codeUnauthorized, "the gateway key is not valid")
	}
	return id, key, nil
}

func allowed(key *control.GatewayKey, want permission) bool {
	return want == public || slices.Contains(key.Permissions, string(want))
}

// mayAsk says whether a key may ask about a tenant. It does not say whether the tenant exists.
func mayAsk(key *control.GatewayKey, tenant string) bool {
	return key.Tenant == "" || key.Tenant == tenant
}
