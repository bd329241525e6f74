package pool

import "path/filepath"

const ephemeralName = "ephemeral"

// OpenEphemeral opens, inside each pool, a pool of the same name for the
// volumes that live and die with one publication. They are known to their node
// only: whoever lists a pool, to find what nobody knows, must not see them.
func (s *Set) OpenEphemeral() (*Set, error) {
	directories := make(map[string]string, len(s.pools))
	for name, each := range s.pools {
		directories[name] = filepath.Join(each.path, ephemeralName)
	}

	return OpenSet(directories, func(p *Pool) { p.carrier, p.removals = s.pools[p.name].carrier, s.pools[p.name].removals })
}
