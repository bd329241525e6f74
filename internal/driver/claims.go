package driver

import (
	"context"

	"github.com/touchstone-csi/touchstone/internal/kubernetes/claim"
)

// openClaims returns the function by which the controller reads claims from the
// Kubernetes API, or nil without --kubeconfig.
func (r *components) openClaims(config claim.Config) (func(ctx context.Context, namespace, name string) (bool, error), error) {
	if config.Kubeconfig == "" {
		return nil, nil //nolint:nilnil // that is what the controller takes for "off"
	}

	claims, err := claim.New(config)
	if err != nil {
		return nil, err
	}

	r.closers = append(r.closers, claims.Close)

	return claims.Direct, nil
}
