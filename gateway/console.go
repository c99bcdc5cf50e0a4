package gateway

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"sync"
)

// console is a page that asks the read API, with the key that its reader types in. It writes nothing and keeps nothing.
//
//go:embed console.html
var console []byte

// consolePolicy lets the page run its own script and style, known by their hashes, and speak to this gateway; nothing else.
var consolePolicy = sync.OnceValue(func() string {
	hash := func(tag string) string {
		_, rest, _ := bytes.Cut(console, []byte("<"+tag+">"))
		text, _, _ := bytes.Cut(rest, []byte("</"+tag+">"))
		sum := sha256.Sum256(text)
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return "default-src 'none'; script-src " + hash("script") + "; style-src " + hash("style") +
		"; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
})

func (g *Gateway) getConsole(c *call) *problem {
	h := c.w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", consolePolicy())
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	_, _ = c.w.Write(console) // the client is gone: nobody is left to tell
	return nil
}
