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

// pages are the tokens of all methods that list.
type pages struct {
	now      func() time.Time
	started  time.Time
	byMethod map[string]*tokens
}

func (p *pages) of(method string) *tokens {
	known := p.byMethod[method]
	if known == nil {
		known = &tokens{unused: map[string]int{}, since: p.started}
		p.byMethod[method] = known
	}

	return known
}

func startingToken(request any) string {
	with, ok := request.(interface{ GetStartingToken() string })
	if !ok {
		return ""
	}

	return with.GetStartingToken()
}

func (p *pages) check(c *call) []finding {
	token := startingToken(c.request)
	if token == "" {
		return nil
	}

	known := p.of(c.method)
	unused, issued := known.unused[token]

	switch {
	case issued && unused <= 0:
		return []finding{{tokenReused, c.rpc(), "starting_token was used before"}}
	case !issued && p.now().Sub(known.since) > tokenGrace:
		return []finding{{tokenUnknown, c.rpc(), "starting_token was never returned"}}
	default:
		return nil
	}
}

// begin takes the token of a request.
func (p *pages) begin(c *call) {
	c.token = startingToken(c.request)

	known := p.of(c.method)
	if _, issued := known.unused[c.token]; issued {
		known.unused[c.token]--
	}
}

// end gives a token back whose page the CO has not got, and takes the next one.
func (p *pages) end(c *call, response any, err error) []finding {
	known := p.of(c.method)
	unused, issued := known.unused[c.token]

	if (err != nil || c.ctx.Err() != nil) && issued {
		known.unused[c.token] = unused + 1
	}

	if err != nil {
		// The driver has not accepted it: it is not from the run before this one either.
		young := p.now().Sub(known.since) <= tokenGrace
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
		known.unused, known.since = map[string]int{}, p.now()
	}

	known.unused[next.GetNextToken()]++

	return nil
}
