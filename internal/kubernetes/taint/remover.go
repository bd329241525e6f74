package taint

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

const (
	// requestTimeout bounds each request.
	requestTimeout = 10 * time.Second
	// DefaultRetryPause doubles with each failure, retrySteps times.
	DefaultRetryPause = time.Second
	retrySteps        = 6
)

// Config configures a Remover.
type Config struct {
	// Cluster is how to reach the API server; nil is the service account of the process's pod.
	Cluster *rest.Config
	// Node is the name of the node's object, and Key that of the taint, with any effect.
	Node, Key  string
	RetryPause time.Duration
	Log        *slog.Logger
}

// Remover removes the taint.
type Remover struct {
	config Config
	nodes  dynamic.ResourceInterface
}

// New returns a remover. It does not call the API yet.
func New(config Config) (*Remover, error) {
	if config.Cluster == nil {
		cluster, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("startup-taint: %w; it needs a pod with a service account's token", err)
		}

		config.Cluster = cluster
	}

	cluster := rest.CopyConfig(config.Cluster)
	cluster.UserAgent, cluster.Timeout = "touchstone", requestTimeout

	client, err := dynamic.NewForConfig(cluster)
	if err != nil {
		return nil, fmt.Errorf("startup-taint: %w", err)
	}

	return &Remover{config: config, nodes: client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})}, nil
}

// Run removes the taint after each signal, until ctx ends. It retries failures, of which it logs the first.
func (r *Remover) Run(ctx context.Context, registered <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-registered:
		}

		failed := false
		pauses := wait.Backoff{Duration: r.config.RetryPause, Factor: 2, Steps: retrySteps}

		// Its only error is that of ctx.
		_ = pauses.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
			removed, err := r.remove(ctx)

			switch {
			case removed:
				r.config.Log.InfoContext(ctx, "removed the startup taint", "node", r.config.Node, "key", r.config.Key)
			case err != nil && !failed && ctx.Err() == nil:
				failed = true
				r.config.Log.ErrorContext(ctx, "cannot remove the startup taint, and retry it; the node plugin's account must be allowed "+
					"to get and patch nodes", "node", r.config.Node, "key", r.config.Key, "error", err)
			}

			return err == nil, nil
		})
	}
}

// remove reports whether the node had the taint. An error of a changed node is solved by a retry.
func (r *Remover) remove(ctx context.Context) (bool, error) {
	node, err := r.nodes.Get(ctx, r.config.Node, metav1.GetOptions{})
	if err != nil {
		return false, err
	}

	taints, _, err := unstructured.NestedSlice(node.Object, "spec", "taints")
	if err != nil {
		return false, err
	}

	others := slices.DeleteFunc(slices.Clone(taints), func(taint any) bool {
		fields, _ := taint.(map[string]any)

		return fields["key"] == r.config.Key
	})
	if len(others) == len(taints) {
		return false, nil
	}

	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/resourceVersion", "value": node.GetResourceVersion()},
		{"op": "replace", "path": "/spec/taints", "value": others},
	})
	if err != nil {
		return false, err
	}

	_, err = r.nodes.Patch(ctx, r.config.Node, types.JSONPatchType, patch, metav1.PatchOptions{})

	return err == nil, err
}
