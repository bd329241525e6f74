package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

// TestVerifyFindsMissingChanges damages the journal of a driver that was killed, and
// of one that ended cleanly: verify finds it, and never calls a state clean from
// which an acknowledged volume is missing.
func TestVerifyFindsMissingChanges(t *testing.T) {
	t.Parallel()

	const volumes = 40

	for name, serve := range map[string]func(*stopped, *testing.T, func(*csiclient.Client), ...string){
		"killed": (*stopped).untilKilled, "closed": (*stopped).during,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := &stopped{dir: t.TempDir()}
			serve(s, t, func(client *csiclient.Client) {
				for i := range volumes {
					createVolume(t, client, fmt.Sprint("volume-", i), nil)
				}
			})

			journal := filepath.Join(s.dir, "state", "state.jsonl")
			kept, err := os.ReadFile(journal)
			require.NoError(t, err)

			lines := len(bytes.TrimRight(kept, "\n"))
			random := rand.New(rand.NewPCG(1, 2))

			for i := range 60 {
				at := random.IntN([]int{lines, len(kept)}[i%2])
				damaged := map[int][]byte{
					0: kept[:at],
					1: append(bytes.Clone(kept[:at]), make([]byte, len(kept)-at)...),
					2: append(bytes.Clone(kept[:at]), bytes.Repeat([]byte("\n"), len(kept)-at)...),
				}[i%3]
				require.NoError(t, os.WriteFile(journal, damaged, 0o600))

				code, said := s.state("verify")
				if bytes.Equal(damaged, kept) || i%3 == 2 && at >= lines {
					continue // newlines in place of newlines
				}

				if code == exitGood {
					require.Contains(t, said, fmt.Sprintf("%d volumes", volumes), "offset %d of %d, kind %d", at, len(kept), i%3)
				} else {
					require.Equal(t, exitNotWell, code, said)
					require.Contains(t, said, "damage: "+journal, said)
				}
			}
		})
	}
}
