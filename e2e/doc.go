// Package e2e proves the promises of the whole pipeline on real engines.
package e2e
