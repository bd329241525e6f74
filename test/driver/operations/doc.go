// Package operations tests calls that overlap, time out and are retried: they join the
// operation under way or are refused, and no caller undoes another's. It also tests a
// driver that can't open files, which must take no volume for absent.
package operations
