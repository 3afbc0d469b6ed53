import * as py from "../python/index.ts";
import {
  type Dict,
  type Kwargs,
  PythonError,
  Thing,
  Tuple,
  Undefined,
  type Value,
} from "../python/index.ts";
import { FILTERS, TESTS } from "./filters.ts";
import { loopThing, unpacked } from "./globals.ts";
import { attribute, callValue, item, type Runtime } from "./methods.ts";
import { type Budget, binary, COMPARISONS, negative, slice } from "./operators.ts";
import type {
  Args,
  Body,
  CallExpr,
  Expr,
  FilterExpr,
  ForNode,
  MacroNode,
  Node,
  Parameter,
  Target,
} from "./parser.ts";

/** Text rendered so far, in pieces. */
type Output = string[];
type Flow = "next" | "break" | "continue";

/** Evaluates the expressions of one render. */
class Evaluator implements Runtime {
  readonly budget: Budget;

  constructor(budget: Budget) {
    this.budget = budget;
  }

  value(node: Expr, scope: Scope): Value {
    this.budget.step();
    switch (node.kind) {
      case "const":
        return node.value;
      case "name":
        return scope.get(node.name);
      case "list":
        return node.items.map((one) => this.value(one, scope));
      case "tuple":
        return new Tuple(node.items.map((one) => this.value(one, scope)));
      case "dict":
        return this.#dict(node.items, scope);
      case "attribute":
        return attribute(this.value(node.of, scope), node.name, this.budget);
      case "item":
        return item(this.value(node.of, scope), this.value(node.key, scope), this.budget);
      case "slice": {
        const of = this.value(node.of, scope);
        const nodes = [node.start, node.stop, node.step];
        const bounds = nodes.map((one) => one && this.value(one, scope));
        return slice(of, bounds, this.budget);
      }
      case "call":
        return this.call(node, scope, null);
      case "filter":
        return this.#filterOf(node, scope);
      case "test": {
        const [args, kwargs] = this.#args(node, scope);
        return this.runTest(node.name, this.value(node.of, scope), args, kwargs);
      }
      case "unary": {
        const of = this.value(node.of, scope);
        return node.op === "not" ? !py.isTrue(of) : negative(of, node.op);
      }
      case "binary": {
        const left = this.value(node.left, scope);
        return binary(node.op, left, this.value(node.right, scope), this.budget);
      }
      case "concat":
        return this.#concat(node.parts, scope);
      case "and":
      case "or": {
        const left = this.value(node.left, scope);
        return py.isTrue(left) === (node.kind === "or") ? left : this.value(node.right, scope);
      }
      case "compare":
        return this.#compare(node, scope);
      case "condition":
        if (py.isTrue(this.value(node.test, scope))) return this.value(node.then, scope);
        if (node.otherwise !== null) return this.value(node.otherwise, scope);
        return new Undefined("the inline if-expression has no else section");
      default:
        return node satisfies never;
    }
  }

  #dict(items: readonly (readonly [Expr, Expr])[], scope: Scope): Dict {
    const dict: Dict = new Map();
    for (const [key, value] of items) {
      dict.set(py.keyOf(this.value(key, scope)), this.value(value, scope));
    }
    return dict;
  }

  #concat(parts: readonly Expr[], scope: Scope): string {
    const text = parts.map((part) => py.textOf(this.value(part, scope))).join("");
    this.budget.made(text.length);
    return text;
  }

  #compare(node: Extract<Expr, { kind: "compare" }>, scope: Scope): boolean {
    let left = this.value(node.first, scope);
    for (const { op, value } of node.rest) {
      const right = this.value(value, scope);
      if (!COMPARISONS[op](left, right)) return false;
      left = right;
    }
    return true;
  }

  #args({ args, kwargs, star, doubleStar }: Args, scope: Scope): [Value[], Kwargs] {
    const values = args.map((one) => this.value(one, scope));
    if (star !== null) values.push(...py.iterate(this.value(star, scope)));
    if (kwargs.length === 0 && doubleStar === null) return [values, NO_KWARGS];
    const named = new Map(kwargs.map(({ key, value }) => [key, this.value(value, scope)]));
    if (doubleStar !== null) {
      const more = this.value(doubleStar, scope);
      if (!(more instanceof Map)) throw new PythonError("argument after ** must be a mapping");
      for (const [key, value] of more) named.set(py.textOf(key), value);
    }
    return [values, named];
  }

  /** Evaluates a call. `caller`: the macro that a call block passes to its callee, or null. */
  call(node: CallExpr, scope: Scope, caller: Value | null): Value {
    const callee = this.value(node.of, scope);
    const [args, kwargs] = this.#args(node, scope);
    const all = caller === null ? kwargs : new Map(kwargs).set("caller", caller);
    return callValue(callee, args, all, this.budget);
  }

  #filterOf(node: FilterExpr, scope: Scope): Value {
    if (node.of === null) throw new PythonError("a filter without a value");
    return this.#apply(node, scope, this.value(node.of, scope));
  }

  /** Applies the chain of filters of a filter block. The first filter receives the block's text. */
  pipe(node: FilterExpr, scope: Scope, text: string): Value {
    const value = node.of?.kind === "filter" ? this.pipe(node.of, scope, text) : text;
    return this.#apply(node, scope, value);
  }

  #apply(node: FilterExpr, scope: Scope, value: Value): Value {
    const [args, kwargs] = this.#args(node, scope);
    return this.runFilter(node.name, value, args, kwargs);
  }

  runFilter(name: string, value: Value, args: readonly Value[], kwargs: Kwargs): Value {
    this.budget.step();
    if (!this.hasFilter(name)) throw new PythonError(`No filter named '${name}'.`);
    return this.budget.deeper(() => FILTERS[name](value, args, kwargs, this));
  }

  hasFilter(name: string): boolean {
    return Object.hasOwn(FILTERS, name);
  }

  runTest(name: string, value: Value, args: readonly Value[], kwargs: Kwargs): boolean {
    this.budget.step();
    if (!Object.hasOwn(TESTS, name)) throw new PythonError(`No test named '${name}'.`);
    return TESTS[name](value, args, this, kwargs);
  }
}

/** Executes the statements of one render. */
export class Interpreter extends Evaluator {
  text(body: Body, scope: Scope): string {
    const out: Output = [];
    this.#body(body, scope, out);
    return out.join("");
  }

  #write(text: string, out: Output): void {
    this.budget.made(text.length);
    out.push(text);
  }

  #body(body: Body, scope: Scope, out: Output): Flow {
    for (const node of body) {
      this.budget.step();
      const flow = this.#node(node, scope, out);
      if (flow !== "next") return flow;
    }
    return "next";
  }

  #node(node: Node, scope: Scope, out: Output): Flow {
    switch (node.kind) {
      case "text":
        this.#write(node.text, out);
        return "next";
      case "output":
        this.#write(py.textOf(this.value(node.value, scope)), out);
        return "next";
      case "if":
        for (const { test, body } of node.branches) {
          if (py.isTrue(this.value(test, scope))) return this.#body(body, scope, out);
        }
        return this.#body(node.otherwise, scope, out);
      case "for":
        return this.#for(node, scope, out, 1, this.value(node.iter, scope));
      case "set":
        this.#assign(node.target, this.value(node.value, scope), scope);
        return "next";
      case "setBlock":
        this.#assign(node.target, this.#filtered(node, scope), scope);
        return "next";
      case "macro":
        scope.set(node.name, this.#macro(node, scope));
        return "next";
      case "callBlock":
        this.#write(py.textOf(this.#callBlock(node, scope)), out);
        return "next";
      case "filterBlock":
        this.#write(py.textOf(this.#filtered(node, scope)), out);
        return "next";
      case "with": {
        const inner = scope.inner();
        for (const { target, value } of node.items) {
          this.#assign(target, this.value(value, scope), inner);
        }
        return this.#body(node.body, inner, out);
      }
      case "generation":
        return this.#body(node.body, scope.inner(), out);
      case "break":
      case "continue":
        return node.kind;
      default:
        return node satisfies never;
    }
  }

  #filtered(
    { filter, body }: Extract<Node, { kind: "setBlock" | "filterBlock" }>,
    scope: Scope,
  ): Value {
    const inner = scope.inner();
    const text = this.text(body, inner);
    return filter === null ? text : this.pipe(filter, scope, text);
  }

  #assign(target: Target, value: Value, scope: Scope): void {
    if (target.kind === "name") {
      scope.set(target.name, value);
      return;
    }
    if (target.kind === "tuple") {
      const parts = unpacked(value, target.items.length);
      for (const [i, item] of target.items.entries()) this.#assign(item, parts[i], scope);
      return;
    }
    const of = scope.get(target.name);
    if (!(of instanceof Thing) || of.slots === null) {
      throw new PythonError("cannot assign attribute on non-namespace object");
    }
    of.slots.set(target.slot, value);
  }

  #for(node: ForNode, scope: Scope, out: Output, depth: number, over: Value): Flow {
    const { budget } = this;
    const items = this.#wanted(node, scope, py.iterate(over));
    budget.made(items.length);
    const state = { items, depth, at: 0, recurse: this.#recursion(node, scope) };
    const loop = loopThing(state);
    let hasRun = false;
    for (const [at, one] of items.entries()) {
      budget.step();
      state.at = at;
      hasRun = true;
      const inner = scope.inner();
      inner.set("loop", loop);
      this.#assign(node.target, one, inner);
      if (this.#body(node.body, inner, out) === "break") break;
    }
    return hasRun ? "next" : this.#body(node.otherwise, scope.inner(), out);
  }

  #wanted({ test, target }: ForNode, scope: Scope, items: readonly Value[]): readonly Value[] {
    if (test === null) return items;
    return items.filter((one) => {
      this.budget.step();
      const inner = scope.inner();
      this.#assign(target, one, inner);
      return py.isTrue(this.value(test, inner));
    });
  }

  #recursion(node: ForNode, scope: Scope) {
    if (!node.isRecursive) return null;
    return (over: Value, depth: number) => {
      const out: Output = [];
      this.#for(node, scope, out, depth, over);
      return out.join("");
    };
  }

  #macro({ name, parameters, body }: MacroNode, scope: Scope): Thing {
    return new Thing("Macro", {
      attributes: { name: () => name },
      call: (args, kwargs) => {
        const inner = scope.inner();
        this.#bind(name, parameters, inner, args, kwargs, usesRest(body));
        return this.text(body, inner);
      },
    });
  }

  #bind(
    name: string,
    parameters: readonly Parameter[],
    scope: Scope,
    args: readonly Value[],
    kwargs: Kwargs,
    rest: ReadonlySet<string>,
  ): void {
    const given = new Map(kwargs);
    for (const [i, parameter] of parameters.entries()) {
      const value = args[i] ?? (i < args.length ? null : given.get(parameter.name));
      if (i >= args.length) given.delete(parameter.name);
      if (value !== undefined) scope.set(parameter.name, value);
      else if (parameter.value !== null) {
        scope.set(parameter.name, this.value(parameter.value, scope));
      } else scope.undefine(parameter.name);
    }
    const caller = given.get("caller");
    if (caller !== undefined) {
      scope.set("caller", caller);
      given.delete("caller");
    } else if (rest.has("caller")) scope.undefine("caller");
    const extra = args.slice(parameters.length);
    if (rest.has("varargs")) scope.set("varargs", new Tuple(extra));
    else if (extra.length > 0) {
      throw new PythonError(`macro '${name}' takes not more than ${parameters.length} argument(s)`);
    }
    if (rest.has("kwargs")) scope.set("kwargs", new Map<Value, Value>(given));
    else if (given.size > 0) {
      const [key] = given.keys();
      throw new PythonError(`macro '${name}' takes no keyword argument '${key}'`);
    }
  }

  #callBlock(node: Extract<Node, { kind: "callBlock" }>, scope: Scope): Value {
    const caller = this.#macro({ ...node, kind: "macro", name: "caller" }, scope);
    return this.call(node.call, scope, caller);
  }
}

/**
 * Returns which of `varargs`, `kwargs` and `caller` a macro's body uses. A macro accepts surplus
 * arguments only if its body uses the name for them.
 */
function usesRest(body: Body): ReadonlySet<string> {
  let found = REST.get(body);
  if (found === undefined) {
    const text = JSON.stringify(body, (_key, value) =>
      typeof value === "bigint" ? Number(value) : value,
    );
    const names = ["varargs", "kwargs", "caller"];
    found = new Set(names.filter((name) => text.includes(`{"kind":"name","name":"${name}"}`)));
    REST.set(body, found);
  }
  return found;
}

const REST = new WeakMap<Body, ReadonlySet<string>>();

const NO_KWARGS: Kwargs = new Map();

/**
 * Variables of a block. The block can read the variables of enclosing blocks, but not assign them.
 */
export class Scope {
  readonly #around: Scope | null;
  readonly #values = new Map<string, Value>();

  constructor(around: Scope | null, values: Iterable<readonly [string, Value]> = []) {
    this.#around = around;
    for (const [name, value] of values) this.#values.set(name, value);
  }

  inner(): Scope {
    return new Scope(this);
  }

  get(name: string): Value {
    for (let scope: Scope | null = this; scope !== null; scope = scope.#around) {
      const value = scope.#values.get(name);
      if (value !== undefined) return value;
    }
    return new Undefined(`'${name}' is undefined`);
  }

  set(name: string, value: Value): void {
    this.#values.set(name, value);
  }

  undefine(name: string): void {
    this.set(name, new Undefined(`parameter '${name}' was not provided`));
  }
}
