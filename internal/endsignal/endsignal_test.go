package endsignal

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	heedHangUps() // they are ignored where the tests run under nohup
	goleak.VerifyTestMain(m)
}

func heedHangUps() { signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) }

func send(t *testing.T, s syscall.Signal) {
	t.Helper()
	require.NoError(t, syscall.Kill(os.Getpid(), s))
}

// Symptom: a second signal right after the first was lost, because nothing listened for it yet.
//
//stepmux:faults fetch | A second Ctrl-C that follows the first at once is lost
//stepmux:with cmd/stepmux.TestASecondSignalEndsARunThatNobodyReadsAtOnce
func TestASecondSignalIsNotLostHoweverSoonItComes(t *testing.T) {
	for range 200 {
		ctx, abort, stop := Twice(t.Context(), All...)
		send(t, syscall.SIGTERM)
		send(t, syscall.SIGINT)
		<-abort.Done()
		require.Error(t, ctx.Err())
		require.Contains(t, []int{128 + int(syscall.SIGTERM), 128 + int(syscall.SIGINT)}, Code(ctx))
		stop()
	}
}

func TestOnlyTheSignalsThatAreNamedAskForTheEnd(t *testing.T) {
	ctx, abort, stop := Twice(t.Context(), syscall.SIGTERM)
	defer stop()
	send(t, syscall.SIGHUP) // a reload, elsewhere
	send(t, syscall.SIGTERM)
	<-ctx.Done()
	require.Equal(t, 128+int(syscall.SIGTERM), Code(ctx))
	send(t, syscall.SIGHUP)
	<-abort.Done()
}

func TestAnEndOfTheParentIsNoSignal(t *testing.T) {
	parent, cancel := context.WithCancel(t.Context())
	ctx, abort, stop := Twice(parent, All...)
	defer stop()
	cancel()
	<-ctx.Done()
	require.Zero(t, Code(ctx))
	require.NoError(t, abort.Err())
	send(t, syscall.SIGINT)
	<-abort.Done()
}

// Symptom: a hang-up of the terminal ended "nohup stepmux run", because a signal that is listened for is not ignored.
func TestAHangUpIsIgnoredUnderNohup(t *testing.T) {
	signal.Ignore(syscall.SIGHUP)
	t.Cleanup(heedHangUps)
	ctx, stop := Until(t.Context())
	defer stop()
	send(t, syscall.SIGHUP)
	send(t, syscall.SIGTERM)
	<-ctx.Done()
	require.Equal(t, 128+int(syscall.SIGTERM), Code(ctx))
}
