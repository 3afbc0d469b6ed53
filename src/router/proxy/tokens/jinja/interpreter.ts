import {
  isTrue,
  iterate,
  type Kwargs,
  PythonError,
  Thing,
  Tuple,
  textOf,
  type Value,
} from "../python/index.ts";
import type { Evaluator } from "./evaluator.ts";
import { loopThing, unpacked } from "./globals.ts";
import type { Body, CallBlockNode, ForNode, MacroNode, Node, Parameter, Target } from "./nodes.ts";
import type { Scope } from "./scope.ts";

/** Pieces of text, in order. */
type Output = string[];
type Flow = "next" | "break" | "continue";

/** Runs the statements of one render. */
export class Interpreter {
  readonly #evaluator: Evaluator;

  constructor(evaluator: Evaluator) {
    this.#evaluator = evaluator;
  }

  text(body: Body, scope: Scope): string {
    const out: Output = [];
    this.#body(body, scope, out);
    return out.join("");
  }

  #write(text: string, out: Output): void {
    this.#evaluator.budget.made(text.length);
    out.push(text);
  }

  #body(body: Body, scope: Scope, out: Output): Flow {
    for (const node of body) {
      this.#evaluator.budget.step();
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
        this.#write(textOf(this.#evaluator.value(node.value, scope)), out);
        return "next";
      case "if":
        for (const { test, body } of node.branches) {
          if (isTrue(this.#evaluator.value(test, scope))) return this.#body(body, scope, out);
        }
        return this.#body(node.otherwise, scope, out);
      case "for":
        return this.#for(node, scope, out, 1, this.#evaluator.value(node.iter, scope));
      case "set":
        this.#assign(node.target, this.#evaluator.value(node.value, scope), scope);
        return "next";
      case "setBlock":
        this.#assign(node.target, this.#filtered(node, scope), scope);
        return "next";
      case "macro":
        scope.set(node.name, this.#macro(node, scope));
        return "next";
      case "callBlock":
        this.#write(textOf(this.#callBlock(node, scope)), out);
        return "next";
      case "filterBlock":
        this.#write(textOf(this.#filtered(node, scope)), out);
        return "next";
      case "with": {
        const inner = scope.inner();
        for (const { target, value } of node.items) {
          this.#assign(target, this.#evaluator.value(value, scope), inner);
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
    return filter === null ? text : this.#evaluator.pipe(filter, scope, text);
  }

  #assign(target: Target, value: Value, scope: Scope): void {
    if (target.kind === "name") {
      scope.set(target.name, value);
      return;
    }
    if (target.kind === "tuple") {
      const parts = unpacked(value, target.items.length);
      for (const [i, item] of target.items.entries()) this.#assign(item, parts[i]!, scope);
      return;
    }
    const of = scope.get(target.name);
    if (!(of instanceof Thing) || of.slots === null) {
      throw new PythonError("cannot assign attribute on non-namespace object");
    }
    of.slots.set(target.slot, value);
  }

  #for(node: ForNode, scope: Scope, out: Output, depth: number, over: Value): Flow {
    const { budget } = this.#evaluator;
    const items = this.#wanted(node, scope, iterate(over));
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
      this.#evaluator.budget.step();
      const inner = scope.inner();
      this.#assign(target, one, inner);
      return isTrue(this.#evaluator.value(test, inner));
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
        scope.set(parameter.name, this.#evaluator.value(parameter.value, scope));
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

  #callBlock({ call, parameters, body }: CallBlockNode, scope: Scope): Value {
    const node: MacroNode = { kind: "macro", name: "caller", parameters, body };
    const caller = this.#macro(node, scope);
    return this.#evaluator.call(call, scope, caller);
  }
}

/** A macro takes more arguments only if its body names them. */
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
