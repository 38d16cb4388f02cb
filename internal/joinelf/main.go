// The joinelf program puts the program stepmux-init into the file of stepmux-vm, an ELF file: joinelf VM INIT. The two
// are at different addresses. A process maps both, but of the one that it does not run no page comes into memory. The
// file begins at the entry of stepmux-init, which knows that of stepmux-vm. [docs/adr/0017] says why.
//
// [docs/adr/0017]: https://github.com/stepmux/stepmux/blob/main/docs/adr/0017-what-a-build-costs.md
package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
)

// elsewhere is the value in stepmux-init that becomes the entry of stepmux-vm, see entry_*.s there.
const elsewhere = 0x7a2d78756d706574

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: joinelf VM INIT")
		os.Exit(2)
	}
	if err := join(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintf(os.Stderr, "joinelf: put %s into %s: %v\n", os.Args[2], os.Args[1], err)
		os.Exit(1)
	}
}

// program is an ELF file of 64 bits and little endian.
type program struct {
	bytes  []byte
	header elf.Header64
	parts  []elf.Prog64
}

func read(path string) (p program, err error) {
	if p.bytes, err = os.ReadFile(path); err != nil {
		return p, err
	}
	if err := p.decode(0, &p.header); err != nil {
		return p, err
	}
	p.parts = make([]elf.Prog64, p.header.Phnum)
	return p, p.decode(p.header.Phoff, &p.parts)
}

func (p *program) decode(at uint64, to any) error {
	if at > uint64(len(p.bytes)) {
		return errors.New("the file is too short")
	}
	_, err := binary.Decode(p.bytes[at:], binary.LittleEndian, to)
	return err
}

// join puts the file small into the file vm.
func join(vm, small string) error {
	to, err := read(vm)
	if err != nil {
		return err
	}
	from, err := read(small)
	if err != nil {
		return err
	}
	last, added := 0, []elf.Prog64{}
	for i, part := range to.parts {
		if elf.ProgType(part.Type) == elf.PT_LOAD {
			last = i
		}
	}
	end := to.parts[last].Vaddr + to.parts[last].Memsz
	mark := binary.LittleEndian.AppendUint64(nil, elsewhere)
	at := bytes.Index(from.bytes, mark)
	if at < 0 || bytes.LastIndex(from.bytes, mark) != at {
		return errors.New("the second has no place for the entry of the first, or several")
	}
	binary.LittleEndian.PutUint64(from.bytes[at:], to.header.Entry)
	sections := to.bytes[to.header.Shoff:][:uint64(to.header.Shnum)*uint64(to.header.Shentsize)]
	file := slices.Clone(to.bytes)
	for _, part := range from.parts {
		if elf.ProgType(part.Type) != elf.PT_LOAD {
			continue
		}
		if part.Vaddr < end {
			return fmt.Errorf("both have the address %#x", part.Vaddr)
		}
		end = part.Vaddr + part.Memsz
		for uint64(len(file))%part.Align != part.Vaddr%part.Align {
			file = append(file, 0)
		}
		data := from.bytes[part.Off:][:part.Filesz]
		part.Off = uint64(len(file))
		file, added = append(file, data...), append(added, part)
	}
	to.parts = slices.Insert(to.parts, last+1, added...)
	head, err := to.head(from.header.Entry, sections)
	if err != nil {
		return err
	}
	copy(file, head)
	return os.WriteFile(vm, file, 0o755)
}

// head returns the first bytes of the file: the header with another entry, the parts, and the table of sections after
// them. The linker leaves room there.
func (p *program) head(entry uint64, sections []byte) ([]byte, error) {
	room := p.parts[0].Off
	for _, part := range p.parts {
		if kind := elf.ProgType(part.Type); kind == elf.PT_NOTE || kind == elf.PT_LOAD && part.Off > 0 {
			room = part.Off
			break
		}
	}
	size := uint64(p.header.Phentsize) * uint64(len(p.parts))
	for i := range p.parts {
		if elf.ProgType(p.parts[i].Type) == elf.PT_PHDR {
			p.parts[i].Filesz, p.parts[i].Memsz = size, size
		}
	}
	p.header.Entry, p.header.Phnum, p.header.Shoff = entry, uint16(len(p.parts)), p.header.Phoff+size
	var head bytes.Buffer
	err := errors.Join(binary.Write(&head, binary.LittleEndian, p.header),
		binary.Write(&head, binary.LittleEndian, p.parts))
	head.Write(sections)
	if err == nil && uint64(head.Len()) > room {
		err = errors.New("the first has no room for more parts")
	}
	return head.Bytes(), err
}
