package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/manager/natscall"
)

func TestAFeedHasTheLastPiecesAndTellsOfAGap(t *testing.T) {
	var f feeds
	text := []byte("x")
	add := func(before, place uint64) { f.add("b", fedPiece{Piece{Text: text}, before, place}) }
	add(0, 1) // nobody follows
	of := f.open("b")
	pieces, more, whole := f.after(of, 1)
	require.Empty(t, pieces)
	require.True(t, whole)

	add(1, 4)
	<-more
	text[0] = 'y' // the buffer is used again
	pieces, _, whole = f.after(of, 1)
	require.True(t, whole)
	require.Len(t, pieces, 1)
	require.Equal(t, "x", string(pieces[0].Text))
	_, _, whole = f.after(of, 0)
	require.False(t, whole, "the piece at 1 was stored before the feed was opened")

	for i := range uint64(natscall.Ahead) {
		add(4+i, 5+i)
	}
	pieces, _, whole = f.after(of, 4)
	require.True(t, whole)
	require.Len(t, pieces, natscall.Ahead)
	_, _, whole = f.after(of, 1)
	require.False(t, whole, "that at 4 has gone")
	require.Same(t, of, f.open("b"), "readers share one feed")
	f.close("b")
	f.close("b")
	require.Empty(t, f.all)
}
