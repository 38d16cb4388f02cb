package inventory

import "github.com/stepmux/stepmux/internal/yamltree"

// Error is an error in an inventory, with its position and, if possible, the remedy: its Line and Column count from 1,
// and are 0 if the error concerns the whole text.
type Error = yamltree.Error
