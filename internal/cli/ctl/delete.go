package ctl

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// deletion is a command that makes one call for each given id. It continues after an error.
func deletion(given *settings, call, what string, remove func(ctx context.Context, s *session, id string) error) *cobra.Command {
	return &cobra.Command{
		Use:   "delete ID…",
		Short: call + " for each",
		Long: call + ` for each ` + what + `. It continues after an error; deleting
what is not there succeeds, as the spec wants it.`,
		Args: atLeast(1),
		RunE: given.inSession(func(ctx context.Context, s *session) error {
			var (
				deleted = []string{}
				rows    [][]string
				refused []error
			)

			for _, id := range s.args {
				if err := remove(ctx, s, id); err != nil {
					refused = append(refused, fmt.Errorf("%s: %w", id, err))

					continue
				}

				deleted = append(deleted, id)
				rows = append(rows, []string{"deleted " + id})
			}

			return errors.Join(append(refused, s.show(answers{"deleted": deleted}, rows))...)
		}),
	}
}
