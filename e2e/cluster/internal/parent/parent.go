// Package parent ends a program when the process that started it is gone, however that ended.
//
//	parent process ── holds the write end of our stdin ──> EOF when it dies (SIGKILL too) ──> exit
package parent

import (
	"io"
	"os"
)

// exitCode tells an end by a vanished parent from the program's own exits.
const exitCode = 86

// ExitWhenGone watches stdin if MUSTER_EXIT_WITH_PARENT is 1, and exits at its end. The parent
// gives a pipe as stdin and never writes to it; the kernel closes the pipe with the parent.
func ExitWhenGone() {
	if os.Getenv("MUSTER_EXIT_WITH_PARENT") != "1" {
		return
	}
	go func() {
		// An error on reading means the same as the end: nobody holds the other side.
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(exitCode)
	}()
}
