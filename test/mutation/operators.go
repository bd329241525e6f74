package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
)

// operators finds what the operators can change in the functions of a file: one mutant for each
// place and operator. Each changes one statement or expression, so that a test which observes it
// fails. Logging, with the decision whether to log, and the texts of errors and of panics, are left out: no
// test should depend on them word by word.
type operators struct {
	pkg, file string
	text      string
	files     *token.FileSet
	// function is the one that is being walked, and failing says that its last result is an error.
	function string
	failing  bool
	// repeated counts equal descriptions in one function, to number them.
	repeated map[string]int
	found    []mutant
}

// mutantsOf returns the mutants of a file of a package, in the file's order. The name of a mutant
// is its function, its operator and the text it changes, so that it stays the same while other
// functions change.
func mutantsOf(pkg, file, text string) ([]mutant, error) {
	o := &operators{pkg: pkg, file: file, text: text, files: token.NewFileSet(), repeated: map[string]int{}}

	tree, err := parser.ParseFile(o.files, file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}

	for _, each := range tree.Decls {
		decl, ok := each.(*ast.FuncDecl)
		if !ok || decl.Body == nil || decl.Name.Name == "init" {
			continue
		}

		o.function = functionName(decl)
		o.failing = returnsError(decl.Type)
		ast.Inspect(decl.Body, o.visit)
	}

	return o.found, nil
}

// functionName returns the name of a function, with its receiver's type for a method.
func functionName(decl *ast.FuncDecl) string {
	if decl.Recv == nil {
		return decl.Name.Name
	}

	kind := decl.Recv.List[0].Type
	if star, ok := kind.(*ast.StarExpr); ok {
		kind = star.X
	}

	switch generic := kind.(type) {
	case *ast.IndexExpr:
		kind = generic.X
	case *ast.IndexListExpr:
		kind = generic.X
	}

	if name, ok := kind.(*ast.Ident); ok {
		return name.Name + "." + decl.Name.Name
	}

	return decl.Name.Name
}

func returnsError(signature *ast.FuncType) bool {
	if signature.Results == nil {
		return false
	}

	last, ok := signature.Results.List[len(signature.Results.List)-1].Type.(*ast.Ident)

	return ok && last.Name == "error"
}

func (o *operators) visit(node ast.Node) bool {
	switch n := node.(type) {
	case *ast.FuncLit:
		outer := o.failing
		o.failing = returnsError(n.Type)
		ast.Inspect(n.Body, o.visit)
		o.failing = outer

		return false
	case *ast.CallExpr:
		if isText(n) {
			return false
		}

		o.dropSync(n)
	case *ast.IfStmt:
		if onlyLogs(n) {
			if n.Init != nil {
				ast.Inspect(n.Init, o.visit)
			}

			return false
		}

		o.negate(n.Cond)
		o.dropBranch(n)
	case *ast.BinaryExpr:
		o.replaceOperator(n)
	case *ast.ReturnStmt:
		o.dropError(n)
	case *ast.BlockStmt:
		o.dropStatements(n.List)
		o.swapEffects(n.List)
	case *ast.CaseClause:
		o.dropStatements(n.Body)
		o.swapEffects(n.Body)
	case *ast.CommClause:
		o.dropStatements(n.Body)
	}

	return true
}

// isText reports whether a call makes or logs a text.
func isText(call *ast.CallExpr) bool {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		name, ok := call.Fun.(*ast.Ident)

		return ok && name.Name == "panic"
	}

	if x, ok := selector.X.(*ast.Ident); ok {
		switch x.Name {
		case "fmt", "log", "slog", "klog":
			return selector.Sel.Name != "Sscanf" && selector.Sel.Name != "Sscan"
		}
	}

	return isLog(call)
}

// isLog reports whether a call logs.
func isLog(call *ast.CallExpr) bool {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return false
	}

	switch selector.Sel.Name {
	case "Debug", "Info", "Warn", "Error", "DebugContext", "InfoContext", "WarnContext", "ErrorContext", "LogAttrs":
		return true
	default:
		return false
	}
}

// onlyLogs reports whether a statement decides on nothing but whether something is logged.
func onlyLogs(n *ast.IfStmt) bool {
	return n.Else == nil && !hasCall(n.Cond) && !slices.ContainsFunc(n.Body.List, func(each ast.Stmt) bool {
		statement, ok := each.(*ast.ExprStmt)
		if !ok {
			return true
		}

		call, ok := statement.X.(*ast.CallExpr)

		return !ok || !isLog(call)
	})
}

// replaced are the binary operators and what they become.
var replaced = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LAND: token.LOR, token.LOR: token.LAND,
	// Off by one.
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.ADD: token.SUB, token.SUB: token.ADD,
}

func (o *operators) replaceOperator(n *ast.BinaryExpr) {
	other, ok := replaced[n.Op]
	if !ok || n.Op == token.ADD && isString(n) {
		return
	}

	at := o.offset(n.OpPos)
	o.add("replace "+n.Op.String(), o.piece(n), at, at+len(n.Op.String()), other.String())
}

// isString reports whether an addition has a literal string in it.
func isString(n ast.Expr) bool {
	switch n := n.(type) {
	case *ast.BasicLit:
		return n.Kind == token.STRING
	case *ast.BinaryExpr:
		return isString(n.X) || isString(n.Y)
	default:
		return false
	}
}

func (o *operators) negate(condition ast.Expr) {
	if binary, ok := condition.(*ast.BinaryExpr); ok && (binary.Op == token.EQL || binary.Op == token.NEQ) {
		return // replaceOperator does it
	}

	o.replace("negate", condition, "!("+o.piece(condition)+")")
}

// dropBranch has a condition that guards a single branch never hold. An error that is only passed
// on is dropped in this way.
func (o *operators) dropBranch(n *ast.IfStmt) {
	if n.Else == nil {
		o.replace("never", n.Cond, "false && ("+o.piece(n.Cond)+")")
	}
}

// dropError returns success instead of the error of a function.
func (o *operators) dropError(n *ast.ReturnStmt) {
	if !o.failing || len(n.Results) == 0 {
		return
	}

	last := n.Results[len(n.Results)-1]
	if name, ok := last.(*ast.Ident); ok && name.Name == "nil" {
		return
	}

	o.replace("drop error", last, "func() error { _ = "+o.piece(last)+"; return nil }()")
}

// syncs are the calls that make something durable.
var syncs = []string{"Sync", "SyncDir", "Fdatasync", "Fsync", "Syncfs", "SyncFile", "syncDir", "sync"}

func (o *operators) dropSync(call *ast.CallExpr) {
	name := ""

	switch function := call.Fun.(type) {
	case *ast.SelectorExpr:
		name = function.Sel.Name
	case *ast.Ident:
		name = function.Name
	}

	if slices.Contains(syncs, name) {
		o.replace("drop sync", call, "error(nil)")
	}
}

// dropStatements drops what has an effect: a call, an assignment, a send, a deferred call.
func (o *operators) dropStatements(list []ast.Stmt) {
	for _, each := range list {
		switch n := each.(type) {
		case *ast.ExprStmt:
			if call, ok := n.X.(*ast.CallExpr); ok && isText(call) {
				continue
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				continue
			}
		case *ast.DeferStmt, *ast.SendStmt, *ast.IncDecStmt, *ast.GoStmt:
		default:
			continue
		}

		o.replace("drop", each, "")
	}
}

// swapEffects swaps two calls or assignments that follow each other. It moves none into or out of what
// a mutex guards, which the race detector sees, without which the tests run here, and swaps neither two
// assignments that are independent of each other nor two registrations.
func (o *operators) swapEffects(list []ast.Stmt) {
	for i := 1; i < len(list); i++ {
		if !isEffect(list[i-1]) || !isEffect(list[i]) || o.isMutex(list[i-1]) || o.isMutex(list[i]) ||
			o.areIndependent(list[i-1], list[i]) || isRegistration(list[i-1]) && isRegistration(list[i]) {
			continue
		}

		first, second := list[i-1], list[i]
		start, end := o.offset(first.Pos()), o.offset(second.End())
		between := o.text[o.offset(first.End()):o.offset(second.Pos())]
		o.add("swap", o.piece(first), start, end, o.piece(second)+between+o.piece(first))
	}
}

// isMutex reports whether a statement locks or unlocks.
func (o *operators) isMutex(statement ast.Stmt) bool {
	text := o.piece(statement)

	return strings.HasSuffix(text, "Lock()") || strings.HasSuffix(text, "Unlock()")
}

// isRegistration reports whether a statement defines a flag or registers a handler or a service: these
// are found by their names.
func isRegistration(statement ast.Stmt) bool {
	expression, ok := statement.(*ast.ExprStmt)
	if !ok {
		return false
	}

	call, ok := expression.X.(*ast.CallExpr)
	if !ok {
		return false
	}

	selector, ok := call.Fun.(*ast.SelectorExpr)

	return ok && registration.MatchString(selector.Sel.Name)
}

var registration = regexp.MustCompile("Var$|^(define|Handle|Register)")

func isEffect(statement ast.Stmt) bool {
	switch n := statement.(type) {
	case *ast.ExprStmt:
		call, ok := n.X.(*ast.CallExpr)

		return ok && !isText(call)
	case *ast.AssignStmt:
		return n.Tok == token.ASSIGN
	default:
		return false
	}
}

// areIndependent reports whether two statements are assignments without calls, of which neither names
// what the other one assigns to.
func (o *operators) areIndependent(first, second ast.Stmt) bool {
	a, isA := first.(*ast.AssignStmt)
	b, isB := second.(*ast.AssignStmt)

	return isA && isB && !hasCall(a) && !hasCall(b) && !o.names(b, a.Lhs) && !o.names(a, b.Lhs)
}

func hasCall(node ast.Node) bool {
	found := false

	ast.Inspect(node, func(each ast.Node) bool {
		_, isCall := each.(*ast.CallExpr)
		found = found || isCall

		return !found
	})

	return found
}

// names reports whether a statement has the text of one of the expressions in it.
func (o *operators) names(statement ast.Node, expressions []ast.Expr) bool {
	return slices.ContainsFunc(expressions, func(each ast.Expr) bool {
		return strings.Contains(o.piece(statement), o.piece(each))
	})
}

func (o *operators) replace(operator string, node ast.Node, with string) {
	o.add(operator, o.piece(node), o.offset(node.Pos()), o.offset(node.End()), with)
}

// textLength is how much of what is changed a mutant's name has.
const textLength = 60

func (o *operators) add(operator, changed string, start, end int, with string) {
	changed = strings.Join(strings.Fields(changed), " ")
	if len(changed) > textLength {
		changed = strings.ToValidUTF8(changed[:textLength], "") + "…"
	}

	name := o.pkg + " " + o.function + ": " + operator + ": " + changed

	o.repeated[name]++
	if n := o.repeated[name]; n > 1 {
		name += fmt.Sprintf(" #%d", n)
	}

	o.found = append(o.found, mutant{
		name: name, file: o.file, function: o.function, start: start, old: o.text[start:end], new: with,
		breaks: fmt.Sprintf("%s:%d", o.file, 1+strings.Count(o.text[:start], "\n")),
	})
}

func (o *operators) offset(at token.Pos) int { return o.files.Position(at).Offset }

func (o *operators) piece(node ast.Node) string {
	return o.text[o.offset(node.Pos()):o.offset(node.End())]
}
