package claim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/connrotation"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

const (
	// InCluster instead of a kubeconfig file selects the service account of the
	// process's pod.
	InCluster = "in-cluster"

	// DefaultTimeout is less than the provisioner's default timeout for CreateVolume,
	// 10 s, so that the provisioner gets the error.
	DefaultTimeout = 5 * time.Second

	// dialTimeout and keepAlive are those of client-go.
	dialTimeout = 30 * time.Second
	keepAlive   = 30 * time.Second
)

// manifest grants what Direct needs.
const manifest = "deploy/direct-assign/rbac.yaml"

// Config configures a Reader.
type Config struct {
	// Kubeconfig is a file, or InCluster.
	Kubeconfig string
	// Timeout bounds each question; 0 is DefaultTimeout.
	Timeout time.Duration
}

// Reader reads claims. It is safe for concurrent use.
type Reader struct {
	// connections has those to the API.
	connections *connrotation.Dialer
	claims      metadata.Getter
	timeout     time.Duration
}

// New returns a reader. It does not call the API yet.
func New(config Config) (*Reader, error) {
	settings, err := load(config.Kubeconfig)
	if err != nil {
		return nil, err
	}

	settings.UserAgent = "touchstone"
	// The server limits requests itself; the client's default would limit the driver
	// to five volumes a second.
	settings.QPS = -1
	connections := connrotation.NewDialer((&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext)
	settings.Dial = connections.DialContext
	settings.Wrap(func(next http.RoundTripper) http.RoundTripper { return brief{next} })

	transport, err := rest.HTTPClientFor(settings)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", config.Kubeconfig, err)
	}

	client, err := metadata.NewForConfigAndClient(settings, transport)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", config.Kubeconfig, err)
	}

	return &Reader{
		connections: connections,
		claims:      client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}),
		timeout:     cmp.Or(config.Timeout, DefaultTimeout),
	}, nil
}

func load(kubeconfig string) (_ *rest.Config, err error) {
	if kubeconfig == InCluster {
		settings, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("kubeconfig %s: %w; it needs a pod with a service account's token", InCluster, err)
		}

		return settings, nil
	}

	defer errdefs.Wrapf(&err, "kubeconfig %s", kubeconfig)

	// Not BuildConfigFromFlags, which silently uses the pod's service account if the
	// file is empty.
	read, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return nil, err
	}

	if err := clientcmd.ResolveLocalPaths(read); err != nil {
		return nil, err
	}

	return clientcmd.NewDefaultClientConfig(*read, nil).ClientConfig()
}

// Close ends all connections: one whose last request was canceled is not idle before the server
// answers, if it does.
func (r *Reader) Close() error {
	r.connections.CloseAll()

	return nil
}

// Direct reports whether the claim has the annotation volume.KeySkipHostmount with the
// value "true". Errors: volume.ErrParameter for an invalid name,
// volume.ErrClaimUnreadable and volume.ErrClaimUnavailable.
func (r *Reader) Direct(ctx context.Context, namespace, name string) (bool, error) {
	// They become part of a URL.
	if problems := append(validation.IsDNS1123Label(namespace), validation.IsDNS1123Subdomain(name)...); len(problems) > 0 {
		return false, fmt.Errorf("%w: claim %q in namespace %q is not a valid name: %s", volume.ErrParameter, name, namespace, problems[0])
	}

	ctx, cancel := context.WithTimeoutCause(ctx, r.timeout, fmt.Errorf("%w within %s", errLate, r.timeout))
	defer cancel()

	found, err := r.claims.Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}

		return false, fmt.Errorf("claim %s/%s: %w", namespace, name, explain(err))
	}

	if found.GetName() != name || found.GetNamespace() != namespace {
		return false, fmt.Errorf("claim %s/%s: %w: the answer is about %s/%s", namespace, name,
			volume.ErrClaimUnavailable, found.GetNamespace(), found.GetName())
	}

	return found.GetAnnotations()[volume.KeySkipHostmount] == "true", nil
}

var errLate = errors.New("no answer")

// maxAnswerBytes is more than Kubernetes lets a claim have.
const maxAnswerBytes = 4 << 20

// brief truncates responses that are too long.
type brief struct{ next http.RoundTripper }

func (b brief) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}

	response.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(response.Body, maxAnswerBytes), response.Body}

	return response, nil
}

// explain distinguishes errors that need an administrator from temporary ones.
func explain(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: %w; either it was deleted, or --kubeconfig is for another cluster", volume.ErrClaimUnreadable, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: %w; apply %s for the account of --kubeconfig", volume.ErrClaimUnreadable, err, manifest)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w: %w; the credentials of --kubeconfig are not good: renew them", volume.ErrClaimUnreadable, err)
	default:
		return fmt.Errorf("%w: %w", volume.ErrClaimUnavailable, err)
	}
}
