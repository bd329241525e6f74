package statuspage

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/touchstone-csi/touchstone/internal/health"
)

//go:embed page.html
var page string

// Report returns the health report, or an error while the driver is starting.
type Report func(context.Context) (health.Report, error)

// Register puts the page at / and its data at /health.json.
func Register(mux *http.ServeMux, report Report) {
	policy := contentPolicy(page)

	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		secure(w.Header(), policy)
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Cache-Control", "no-cache")
		_, _ = w.Write([]byte(page))
	})
	mux.HandleFunc("GET /health.json", func(w http.ResponseWriter, r *http.Request) {
		secure(w.Header(), "default-src 'none'; frame-ancestors 'none'")
		answer(w, r, report)
	})
}

// contentPolicy allows the page its own script and style by their hashes, its
// data, and nothing else.
func contentPolicy(page string) string {
	return fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; connect-src 'self'; img-src data:; "+
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'", hash(page, "script"), hash(page, "style"))
}

// hash returns the CSP source of the content between the tags.
func hash(page, tag string) string {
	_, rest, _ := strings.Cut(page, "<"+tag+">")
	inside, _, _ := strings.Cut(rest, "</"+tag+">")
	sum := sha256.Sum256([]byte(inside))

	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

func secure(header http.Header, policy string) {
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
}

func answer(w http.ResponseWriter, r *http.Request, report Report) {
	w.Header().Set("Cache-Control", "no-store")

	status, err := report(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)

		return
	}

	document, err := json.Marshal(status)
	if err != nil {
		http.Error(w, "encode the report: "+err.Error(), http.StatusInternalServerError)

		return
	}

	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Vary", "Accept-Encoding")

	if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		_, _ = w.Write(document)

		return
	}

	// Thousands of volumes are megabytes every two seconds, and much alike.
	w.Header().Set("Content-Encoding", "gzip")

	packed, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
	_, _ = packed.Write(document)
	_ = packed.Close()
}
