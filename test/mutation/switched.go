package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// variable is the environment variable that has the name of the mutant to run.
	variable = "TOUCHSTONE_MUTANT"
	// reachedVariable has the directory in which the functions are recorded that tests call.
	reachedVariable = "TOUCHSTONE_REACHED"
)

// mark is the comment before the function of a mutant.
const mark = "// mutant: "

// switched are the mutants that one build can hold, and the files that make it.
// Each function with mutants is there several times: as it is, once for each of
// its mutants, and as one of the old name that calls the one that was selected.
type switched struct {
	// names are those of the mutants in it.
	names map[string]bool
	// functions are those that have mutants, by their package's directory; those of a mutant are in
	// changed.
	functions map[string][]string
	changed   map[string][]position
	// files are texts by their paths from the module's root.
	files map[string][]byte
}

// parsed is the text of a file and its functions.
type parsed struct {
	text      []byte
	pkg       string
	functions map[string]*function
	// rest is the text without the functions.
	rest string
}

// position is that of a function among those of its package.
type position struct {
	dir   string
	index int
}

type function struct {
	decl       *ast.FuncDecl
	start, end int
	text       string
}

// newSwitched leaves out mutants that change something else than functions; they
// need a build of their own.
func newSwitched(root string, mutants []mutant) (*switched, error) {
	s := &switched{
		names: map[string]bool{}, files: map[string][]byte{}, functions: map[string][]string{}, changed: map[string][]position{},
	}

	byFile := map[string][]mutant{}
	for _, m := range mutants {
		byFile[m.file] = append(byFile[m.file], m)
	}

	for _, file := range slices.Sorted(maps.Keys(byFile)) {
		if err := s.add(root, file, byFile[file]); err != nil {
			return nil, err
		}
	}

	return s, nil
}

func (s *switched) add(root, file string, mutants []mutant) error {
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return fmt.Errorf("read a file with mutants: %w", err)
	}

	original, err := parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}

	// By function the mutants' names and texts.
	variants := map[string][][2]string{}

	for _, m := range mutants {
		changed, ok := differences(root, original, m)
		if !ok {
			continue
		}

		s.names[m.name] = true

		for key, text := range changed {
			variants[key] = append(variants[key], [2]string{m.name, text})
			s.changed[m.name] = append(s.changed[m.name], s.position(filepath.Dir(file), key))
		}
	}

	if len(variants) == 0 {
		return nil
	}

	dir := filepath.Dir(file)

	formatted, err := format.Source(original.with(variants, func(key string) int { return s.position(dir, key).index }))
	if err != nil {
		return fmt.Errorf("%s with its mutants: %w", file, err)
	}

	s.files[file] = formatted
	s.files[filepath.Join(dir, "mutant_selected.go")] = fmt.Appendf(nil, selected,
		original.pkg, variable, len(s.functions[dir]), reachedVariable, reachedName(dir))

	return nil
}

// position returns that of a function, which gets one at first.
func (s *switched) position(dir, key string) position {
	index := slices.Index(s.functions[dir], key)
	if index < 0 {
		index = len(s.functions[dir])
		s.functions[dir] = append(s.functions[dir], key)
	}

	return position{dir: dir, index: index}
}

// selected is a file of each package with mutants: package, variable, functions, variable, name.
const selected = `package %s

import (
	"os"
	"syscall"
)

var selectedMutant = os.Getenv(%q)

// reachedFunctions has a byte for each function with mutants, 1 once it is called. It is shared with
// the measurement: setting it needs no system call, which tests may count.
var reachedFunctions = func() []byte {
	const size = %d

	file, err := os.OpenFile(os.Getenv(%q)+"/"+%q, os.O_RDWR, 0)
	if err != nil {
		return make([]byte, size)
	}

	defer file.Close()

	shared, err := syscall.Mmap(int(file.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return make([]byte, size)
	}

	return shared
}()
`

// differences returns the functions that the mutant changes, with their new
// texts; false if it changes anything else.
func differences(root string, original *parsed, m mutant) (map[string]string, bool) {
	text, err := m.apply(root)
	if err != nil {
		return nil, false
	}

	mutated, err := parse(text)
	if err != nil || mutated.rest != original.rest {
		return nil, false
	}

	changed := map[string]string{}

	for key, f := range mutated.functions {
		before, ok := original.functions[key]
		if !ok || before.signature() != f.signature() {
			return nil, false
		}

		if before.text != f.text {
			changed[key] = f.text
		}

		// A deferred function that recovers does so only if it is called by the runtime itself.
		if before.text != f.text && strings.Contains(before.text, "recover()") {
			return nil, false
		}
	}

	return changed, len(changed) > 0 && len(mutated.functions) == len(original.functions)
}

func parse(text []byte) (*parsed, error) {
	files := token.NewFileSet()

	tree, err := parser.ParseFile(files, "", text, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}

	p := &parsed{text: text, pkg: tree.Name.Name, functions: map[string]*function{}}
	at := 0

	for _, each := range tree.Decls {
		decl, ok := each.(*ast.FuncDecl)
		if !ok {
			continue
		}

		f := &function{decl: decl, start: files.Position(decl.Pos()).Offset, end: files.Position(decl.End()).Offset}
		f.text = string(text[f.start:f.end])
		p.functions[f.key()] = f
		p.rest += string(text[at:f.start])
		at = f.end
	}

	p.rest += string(text[at:])

	return p, nil
}

// signature is the text up to the body.
func (f *function) signature() string {
	if f.decl.Body == nil {
		return f.text
	}

	return f.text[:int(f.decl.Body.Pos()-f.decl.Pos())]
}

// key distinguishes methods of the same name.
func (f *function) key() string {
	receiver := ""
	if f.decl.Recv != nil {
		receiver = f.piece(f.decl.Recv.List[0].Type)
	}

	return receiver + "." + f.decl.Name.Name
}

func (f *function) piece(node ast.Node) string {
	return f.text[int(node.Pos()-f.decl.Pos()):int(node.End()-f.decl.Pos())]
}

// with returns the file with all variants.
func (p *parsed) with(variants map[string][][2]string, index func(key string) int) []byte {
	var out bytes.Buffer

	at := 0

	sorted := slices.SortedFunc(maps.Values(p.functions), func(a, b *function) int { return a.start - b.start })
	for _, f := range sorted {
		texts, ok := variants[f.key()]
		if !ok {
			continue
		}

		out.Write(p.text[at:f.start])
		f.writeSwitch(&out, texts, index(f.key()))
		at = f.end
	}

	out.Write(p.text[at:])

	return out.Bytes()
}

// writeSwitch writes the function that selects, the original and the mutants.
func (f *function) writeSwitch(out *bytes.Buffer, texts [][2]string, index int) {
	receiver, arguments := f.writeHead(out)
	call := func(name string) string {
		text := receiver + name + f.typeArguments() + "(" + arguments + ")"
		if f.decl.Type.Results != nil {
			return "return " + text
		}

		return text + "; return"
	}

	name := f.decl.Name.Name
	out.WriteString(" {\nswitch selectedMutant {\n")

	for i, each := range texts {
		fmt.Fprintf(out, "case %q:\n%s\n", each[0], call(fmt.Sprintf("%sMutant%d", name, i)))
	}

	fmt.Fprintf(out, "default:\nreachedFunctions[%d] = 1\n%s\n}\n}\n\n", index, call(name+"Original"))
	out.WriteString(f.renamed(f.text, name+"Original") + "\n\n")

	for i, each := range texts {
		out.WriteString(mark + each[0] + "\n")
		out.WriteString(f.renamed(each[1], fmt.Sprintf("%sMutant%d", name, i)) + "\n\n")
	}
}

// writeHead writes the signature with a name for each parameter, and returns what
// a call of a variant has before and behind its name.
func (f *function) writeHead(out *bytes.Buffer) (receiver, arguments string) {
	out.WriteString("func ")

	if f.decl.Recv != nil {
		fmt.Fprintf(out, "(self %s) ", f.piece(f.decl.Recv.List[0].Type))

		receiver = "self."
	}

	out.WriteString(f.decl.Name.Name)

	if f.decl.Type.TypeParams != nil {
		out.WriteString(f.piece(f.decl.Type.TypeParams))
	}

	var declared, passed []string

	for _, field := range f.decl.Type.Params.List {
		dots := ""
		if _, variadic := field.Type.(*ast.Ellipsis); variadic {
			dots = "..."
		}

		for range max(len(field.Names), 1) {
			name := fmt.Sprintf("p%d", len(declared))
			declared = append(declared, name+" "+f.piece(field.Type))
			passed = append(passed, name+dots)
		}
	}

	fmt.Fprintf(out, "(%s) ", strings.Join(declared, ", "))

	if f.decl.Type.Results != nil {
		out.WriteString(f.piece(f.decl.Type.Results))
	}

	return receiver, strings.Join(passed, ", ")
}

func (f *function) typeArguments() string {
	if f.decl.Type.TypeParams == nil {
		return ""
	}

	var names []string

	for _, field := range f.decl.Type.TypeParams.List {
		for _, name := range field.Names {
			names = append(names, name.Name)
		}
	}

	return "[" + strings.Join(names, ", ") + "]"
}

// renamed gives a text with the function's signature another name.
func (f *function) renamed(text, name string) string {
	at := int(f.decl.Name.Pos() - f.decl.Pos())

	return text[:at] + name + text[at+len(f.decl.Name.Name):]
}

// at returns the mutant that has a line of a file, "" for none.
func (s *switched) at(file string, line int) string {
	lines := strings.Split(string(s.files[file]), "\n")

	for _, each := range slices.Backward(lines[:min(line, len(lines))]) {
		if name, ok := strings.CutPrefix(each, mark); ok {
			return name
		}
	}

	return ""
}
