// Package producer is the SDK with which applications emit usage events.
package producer
