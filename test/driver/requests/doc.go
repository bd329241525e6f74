// Package requests tests what applies to all RPCs: each capability can be disabled, and
// requests that are incomplete, hostile or out of order are refused without any effect.
package requests
