// Package kubeapi is an API server of Kubernetes for tests, as far as a
// PersistentVolumeClaim is read there: over TLS, with a token, in the API's
// words.
//
// It contains what tests need the API to contain, to refuse, or to fail at.
package kubeapi

import (
	"encoding/json"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Token is what the server lets in, and nothing else does. It must be in no log.
const Token = "s3cret-service-account-token"

// Server is a running API server. It is safe for concurrent use.
type Server struct {
	// Kubeconfig is a file that leads to it.
	Kubeconfig string

	http    *httptest.Server
	open    sync.WaitGroup
	mu      sync.Mutex
	claims  map[string]map[string]string
	instead http.HandlerFunc
	asked   []string
}

// Start starts a server that knows no claim, until the test ends.
func Start(tb testing.TB) *Server {
	tb.Helper()

	s := &Server{Kubeconfig: filepath.Join(tb.TempDir(), "kubeconfig"), claims: map[string]map[string]string{}}

	routes := http.NewServeMux()
	routes.HandleFunc("GET /api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}", s.get)
	routes.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.note(r)
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
	})

	s.http = httptest.NewUnstartedServer(routes)
	s.http.EnableHTTP2 = true
	s.http.Config.ConnState = s.connected
	s.http.StartTLS()
	tb.Cleanup(s.http.Close)

	WriteKubeconfig(tb, s.Kubeconfig, s.http, Token)

	return s
}

// WriteKubeconfig makes a file that leads to the server with a token.
func WriteKubeconfig(tb testing.TB, path string, server *httptest.Server, token string) {
	tb.Helper()

	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{
		Server:                   server.URL,
		CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}
	config.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"

	text, err := clientcmd.Write(*config)
	require.NoError(tb, err)
	require.NoError(tb, os.WriteFile(path, text, 0o600))
}

// KubeconfigWith is another file that leads to the server, with another token.
func (s *Server) KubeconfigWith(tb testing.TB, token string) string {
	tb.Helper()

	path := filepath.Join(tb.TempDir(), "kubeconfig")
	WriteKubeconfig(tb, path, s.http, token)

	return path
}

// Put lets the server have the claim with these annotations.
func (s *Server) Put(namespace, name string, annotations map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.claims[namespace+"/"+name] = annotations
}

// Instead answers instead of the server, to requests with the token; nil means none.
func (s *Server) Instead(handler http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.instead = handler
}

// Asked are the paths that were asked for.
func (s *Server) Asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return append([]string(nil), s.asked...)
}

// Stop closes the listener. A second call does nothing.
func (s *Server) Stop() {
	s.http.CloseClientConnections()
	s.http.Close()
}

// Left returns once all connections are closed.
func (s *Server) Left() { s.open.Wait() }

func (s *Server) connected(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.open.Add(1)
	case http.StateClosed, http.StateHijacked:
		s.open.Done()
	case http.StateActive, http.StateIdle:
	}
}

// Forbidden answers as if no role allowed it.
func Forbidden(w http.ResponseWriter, _ *http.Request) {
	refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden,
		`persistentvolumeclaims is forbidden: User "system:serviceaccount:touchstone:touchstone-controller" cannot get resource`)
}

// Broken answers as if the API server's database were away.
func Broken(w http.ResponseWriter, _ *http.Request) {
	refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "etcdserver: request timed out")
}

// Hang answers nothing until the client gives up.
func Hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// Garbage answers what no API server says.
func Garbage(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html")
	_, _ = w.Write([]byte("<html>Please sign in</html>"))
}

func (s *Server) note(r *http.Request) (claim map[string]string, known bool, instead http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.asked = append(s.asked, r.URL.Path)
	claim, known = s.claims[r.PathValue("namespace")+"/"+r.PathValue("name")]

	return claim, known, s.instead
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	annotations, known, instead := s.note(r)

	switch {
	case r.Header.Get("Authorization") != "Bearer "+Token:
		refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
	case instead != nil:
		instead(w, r)
	case !known:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, `persistentvolumeclaims "`+r.PathValue("name")+`" not found`)
	default:
		write(w, http.StatusOK, metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: r.PathValue("namespace"), Name: r.PathValue("name"), UID: "7d3b", Annotations: annotations,
			},
		})
	}
}

func refuse(w http.ResponseWriter, code int32, reason metav1.StatusReason, message string) {
	write(w, int(code), metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: code, Reason: reason, Message: message,
	})
}

func write(w http.ResponseWriter, code int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)

	_ = json.NewEncoder(w).Encode(answer) //nolint:errchkjson // who asks may have given up
}
