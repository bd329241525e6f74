package controller

import (
	"cmp"
	"context"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
)

// askClaim lets the claim, too, ask for direct assignment. Only a volume that is
// about to be made asks: from then on its record says what the answer was
// (Volume.DirectByClaim), whatever the claim says later. Errors are those of
// Config.DirectByClaim, and INVALID_ARGUMENT.
func (s *Service) askClaim(ctx context.Context, wanted *createRequest) error {
	if s.config.DirectByClaim == nil || wanted.parameters.DirectAssign {
		return nil
	}

	claim := wanted.claim
	if claim.namespace == "" || claim.name == "" {
		s.config.Log.WarnContext(ctx, "the call names no claim whose annotations could be read; "+
			"run the provisioner with --extra-create-metadata", "volume", wanted.name, "annotation", volume.KeySkipHostmount)

		return nil
	}

	asks, err := s.config.DirectByClaim(ctx, claim.namespace, claim.name)
	if err != nil || !asks {
		return err
	}

	parameters, err := wanted.parameters.WithDirectAssign()
	for _, capability := range wanted.capabilities {
		err = cmp.Or(err, parameters.CheckDirectAssign(capability))
	}

	if err != nil {
		return rpc.Invalid("claim %s/%s asks with its annotation %s for what its volume can't have: %w",
			claim.namespace, claim.name, volume.KeySkipHostmount, err)
	}

	wanted.parameters, wanted.directByClaim = parameters, true

	return nil
}
