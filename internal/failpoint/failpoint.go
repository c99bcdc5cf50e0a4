// Package failpoint cuts a stage at a named point between two side effects, so that tests can prove what a restart makes of
// it. Without the build tag failpoints, Hit is empty and costs nothing.
package failpoint
