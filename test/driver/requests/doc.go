// Package requests tests what applies to all RPCs: each capability can be disabled, requests that are
// incomplete, too large, hostile or out of order are refused without any effect, and no secret of a
// request is logged, recorded, traced or shown.
//
// It contains one complete request of each RPC (complete_test.go), from which the others are derived
// by the descriptors of CSI (test/conformance/methods.go).
package requests
