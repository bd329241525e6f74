// Package pools tests pools: overcommit, thin and thick volumes, full pools, embedded pools,
// files that are not the driver's, durability of what is acknowledged, and pools that fail
// and come back.
package pools
