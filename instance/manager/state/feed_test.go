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
	slow := f.open("b")
	require.Same(t, of.of, slow.of, "readers share one feed")
	f.after(of, 100)
	require.Len(t, of.of.pieces, natscall.Ahead, "another one has not taken them")
	f.after(slow, 4+natscall.Ahead)
	require.Empty(t, of.of.pieces, "all have")
	for place := range uint64(3) {
		f.add("b", fedPiece{Piece{Text: make([]byte, maxFed/2)}, 100 + place, 101 + place})
	}
	require.Len(t, of.of.pieces, 2, "large ones are fewer")
	f.add("b", fedPiece{Piece{Text: make([]byte, 2*maxFed)}, 103, 104})
	require.Len(t, of.of.pieces, 1)
	f.close("b", of)
	f.close("b", slow)
	require.Empty(t, f.all)
}
