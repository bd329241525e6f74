// Package staging tests the lifecycle of each kind of volume on a node: attachment and
// device numbers, formatting, staging, and publication without staging.
package staging
