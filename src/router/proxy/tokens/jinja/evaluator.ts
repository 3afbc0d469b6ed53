import {
  compare,
  contains,
  type Dict,
  equals,
  isTrue,
  iterate,
  type Kwargs,
  keyOf,
  PythonError,
  Tuple,
  textOf,
  Undefined,
  type Value,
} from "../python/index.ts";
import type { Budget } from "./budget.ts";
import { FILTERS } from "./filters.ts";
import type { Args, CallExpr, Comparison, Expr, FilterExpr } from "./nodes.ts";
import { binary, negative, slice } from "./operators.ts";
import { attribute, callValue, item, type Runtime } from "./runtime.ts";
import type { Scope } from "./scope.ts";
import { TESTS } from "./tests.ts";

const NO_KWARGS: Kwargs = new Map();

/** Computes the expressions of one render. */
export class Evaluator implements Runtime {
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
        const bounds = [node.start, node.stop, node.step];
        return slice(
          of,
          bounds.map((one) => one && this.value(one, scope)),
          this.budget,
        );
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
        return node.op === "not" ? !isTrue(of) : negative(of, node.op);
      }
      case "binary":
        return binary(
          node.op,
          this.value(node.left, scope),
          this.value(node.right, scope),
          this.budget,
        );
      case "concat":
        return this.#concat(node.parts, scope);
      case "and":
      case "or": {
        const left = this.value(node.left, scope);
        return isTrue(left) === (node.kind === "or") ? left : this.value(node.right, scope);
      }
      case "compare":
        return this.#compare(node, scope);
      case "condition":
        if (isTrue(this.value(node.test, scope))) return this.value(node.then, scope);
        if (node.otherwise !== null) return this.value(node.otherwise, scope);
        return new Undefined("the inline if-expression has no else section");
      default:
        return node satisfies never;
    }
  }

  #dict(items: readonly (readonly [Expr, Expr])[], scope: Scope): Dict {
    const dict: Dict = new Map();
    for (const [key, value] of items) {
      dict.set(keyOf(this.value(key, scope)), this.value(value, scope));
    }
    return dict;
  }

  #concat(parts: readonly Expr[], scope: Scope): string {
    const text = parts.map((part) => textOf(this.value(part, scope))).join("");
    this.budget.made(text.length);
    return text;
  }

  #compare(node: Extract<Expr, { kind: "compare" }>, scope: Scope): boolean {
    let left = this.value(node.first, scope);
    for (const { op, value } of node.rest) {
      const right = this.value(value, scope);
      if (!holds(op, left, right)) return false;
      left = right;
    }
    return true;
  }

  #args({ args, kwargs, star, doubleStar }: Args, scope: Scope): [Value[], Kwargs] {
    const values = args.map((one) => this.value(one, scope));
    if (star !== null) values.push(...iterate(this.value(star, scope)));
    if (kwargs.length === 0 && doubleStar === null) return [values, NO_KWARGS];
    const named = new Map(kwargs.map(({ key, value }) => [key, this.value(value, scope)]));
    if (doubleStar !== null) {
      const more = this.value(doubleStar, scope);
      if (!(more instanceof Map)) throw new PythonError("argument after ** must be a mapping");
      for (const [key, value] of more) named.set(textOf(key), value);
    }
    return [values, named];
  }

  /** `caller` is what a call block hands to its macro. */
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

  /** A chain of filters whose first one takes the text of a block. */
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
    const found = this.hasFilter(name) ? FILTERS[name]! : null;
    if (found === null) throw new PythonError(`No filter named '${name}'.`);
    return this.budget.deeper(() => found(value, args, kwargs, this));
  }

  hasFilter(name: string): boolean {
    return Object.hasOwn(FILTERS, name);
  }

  runTest(name: string, value: Value, args: readonly Value[], kwargs: Kwargs): boolean {
    this.budget.step();
    if (!Object.hasOwn(TESTS, name)) throw new PythonError(`No test named '${name}'.`);
    return TESTS[name]!(value, args, this, kwargs);
  }
}

function holds(op: Comparison, left: Value, right: Value): boolean {
  switch (op) {
    case "==":
      return equals(left, right);
    case "!=":
      return !equals(left, right);
    case "in":
      return contains(right, left);
    case "not in":
      return !contains(right, left);
    case "<":
      return compare(left, right) < 0;
    case "<=":
      return compare(left, right) <= 0;
    case ">":
      return compare(left, right) > 0;
    case ">=":
      return compare(left, right) >= 0;
    default:
      return op satisfies never;
  }
}
