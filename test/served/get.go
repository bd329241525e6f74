package served

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
)

var errStatus = errors.New("the answer is not 200")

// Get returns what a driver serves at a path of its --http-endpoint, which is address, as host:port. An answer
// other than 200 is an error. No connection is left open.
func Get(ctx context.Context, address, path string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		return "", fmt.Errorf("get %s: %w", path, err)
	}

	request.Close = true

	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", fmt.Errorf("get %s: %w", path, err)
	}
	defer answer.Body.Close()

	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%w: %s: %s", errStatus, answer.Status, text)
	}

	if err != nil {
		return "", fmt.Errorf("get %s: %w", path, err)
	}

	return string(text), nil
}
