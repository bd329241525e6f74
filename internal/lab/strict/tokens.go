package strict

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// tokenGrace is how long after the start a token may be from the run before it. A CO asks for
	// the next page at once; ten minutes are the longest interval of Kubernetes' components that list.
	tokenGrace = 10 * time.Minute
	// maxTokens bounds the tokens of a method.
	maxTokens = 10000
)

// tokens are the tokens of a method, each with how many responses had it that no request has used.
type tokens struct {
	unused map[string]int
	// since is when all issued tokens have been known from.
	since time.Time
}

func (m *Monitor) tokensOf(method string) *tokens {
	known := m.tokens[method]
	if known == nil {
		known = &tokens{unused: map[string]int{}, since: m.started}
		m.tokens[method] = known
	}

	return known
}

func startingToken(request any) (string, bool) {
	with, ok := request.(interface{ GetStartingToken() string })
	if !ok {
		return "", false
	}

	return with.GetStartingToken(), true
}

func (m *Monitor) checkToken(c *call) []finding {
	token, isList := startingToken(c.request)
	if !isList || token == "" {
		return nil
	}

	known := m.tokensOf(c.method)
	unused, issued := known.unused[token]

	switch {
	case issued && unused <= 0:
		return []finding{{tokenReused, c.rpc(), "starting_token was used before"}}
	case !issued && m.config.Now().Sub(known.since) > tokenGrace:
		return []finding{{tokenUnknown, c.rpc(), "starting_token was never returned"}}
	default:
		return nil
	}
}

// beginToken takes the token of a request.
func (m *Monitor) beginToken(c *call) {
	c.token, c.isList = startingToken(c.request)
	if known := m.tokensOf; c.token != "" {
		if _, issued := known(c.method).unused[c.token]; issued {
			known(c.method).unused[c.token]--
		}
	}
}

// endToken gives a token back whose page the CO has not got, and takes the next one.
func (m *Monitor) endToken(c *call, response any, err error) []finding {
	if !c.isList {
		return nil
	}

	known := m.tokensOf(c.method)
	unused, issued := known.unused[c.token]

	if (err != nil || c.ctx.Err() != nil) && issued {
		known.unused[c.token] = unused + 1
	}

	if err != nil {
		// The driver has not accepted it: it is not from the run before this one either.
		young := m.config.Now().Sub(known.since) <= tokenGrace
		if c.token != "" && !issued && young && status.Code(err) == codes.Aborted {
			return []finding{{tokenUnknown, c.rpc(), "starting_token was never returned"}}
		}

		return nil
	}

	next, ok := response.(interface{ GetNextToken() string })
	if !ok || next.GetNextToken() == "" {
		return nil
	}

	if len(known.unused) >= maxTokens {
		known.unused, known.since = map[string]int{}, m.config.Now()
	}

	known.unused[next.GetNextToken()]++

	return nil
}
