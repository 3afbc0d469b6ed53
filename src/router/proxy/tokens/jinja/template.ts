import { PythonError, type Value } from "../python/index.ts";
import { globals } from "./globals.ts";
import { Interpreter, Scope } from "./interpreter.ts";
import { Budget, RENDER_LIMITS, type RenderLimits } from "./operators.ts";
import type { Body, Expr, ForNode, MacroNode, Node, Parameter, Target } from "./parser.ts";
import { parseTemplate } from "./parser.ts";

export interface RenderOptions {
  readonly limits?: RenderLimits;
  /** Returns the current time for `strftime_now`. */
  readonly now: () => Date;
}

/** A compiled chat template. Renders the same text as transformers. */
export class Template {
  readonly #body: Body;

  /** Compiles a template. Throws TemplateSyntaxError if the source is invalid. */
  constructor(source: string) {
    this.#body = parseTemplate(source);
  }

  /** True if the template expects a message's content as a list of parts, by vLLM's rule. */
  get wantsParts(): boolean {
    return walksContent(this.#body);
  }

  /**
   * Renders the template. Throws PythonError if the engine would reject the request, or if a limit
   * is exceeded.
   */
  render(variables: Iterable<readonly [string, Value]>, options: RenderOptions): string {
    const budget = new Budget(options.limits ?? RENDER_LIMITS);
    const outer = new Scope(null, globals(budget, options.now));
    const scope = new Scope(new Scope(outer, variables));
    try {
      return new Interpreter(budget).text(this.#body, scope);
    } catch (thrown) {
      // Deeply nested blocks and macros can overflow this thread's stack before they reach a limit.
      if (thrown instanceof RangeError) throw new PythonError("maximum recursion depth exceeded");
      throw thrown;
    }
  }
}

/**
 * Returns true if a template loops over the parts of a message's content. vLLM 0.32 chooses the
 * form of messages by this rule: find the variables assigned from `messages`, the loops over these
 * variables, and in them a loop over `content` of an item, or over a macro's parameter that
 * receives this content.
 */
function walksContent(body: Body): boolean {
  const tree = collect(body);
  try {
    return contentLoops(tree);
  } catch (thrown) {
    // vLLM's rule does not apply to templates with loops over messages that assign several names.
    if (thrown instanceof NotOneName) return false;
    throw thrown;
  }
}

class NotOneName extends Error {}

interface Tree {
  readonly sets: readonly { readonly target: Target; readonly value: Expr }[];
  readonly loops: readonly ForNode[];
  readonly macros: readonly MacroNode[];
  readonly calls: readonly Extract<Expr, { kind: "call" }>[];
  readonly loopsInMacros: ReadonlyMap<ForNode, readonly MacroNode[]>;
}

function collect(body: Body): Tree {
  const loopsInMacros = new Map<ForNode, MacroNode[]>();
  const tree = { sets: [] as { target: Target; value: Expr }[], loops: [] as ForNode[] };
  const macros: MacroNode[] = [];
  const calls: Extract<Expr, { kind: "call" }>[] = [];
  const walk = (value: unknown, around: readonly MacroNode[]): void => {
    if (Array.isArray(value)) {
      for (const one of value) walk(one, around);
      return;
    }
    if (typeof value !== "object" || value === null || value instanceof Map) return;
    const node = value as Node | Expr | Parameter;
    let inner = around;
    if ("kind" in node) {
      if (node.kind === "set") tree.sets.push(node);
      else if (node.kind === "for") {
        tree.loops.push(node);
        loopsInMacros.set(node, [...around]);
      } else if (node.kind === "macro") {
        macros.push(node);
        inner = [...around, node];
      } else if (node.kind === "call") calls.push(node);
    }
    for (const part of Object.values(node)) walk(part, inner);
  };
  walk(body, []);
  return { ...tree, macros, calls, loopsInMacros };
}

/**
 * Returns true if an expression is the variable `name`, or a filter, test or slice of it. With
 * `key`, it must be that item of the variable.
 */
function isAccess(node: Expr, name: string, key: string | null): boolean {
  if (node.kind === "filter") return node.of !== null && isAccess(node.of, name, key);
  if (node.kind === "test" || node.kind === "slice") return isAccess(node.of, name, key);
  const isName = (one: Expr) => one.kind === "name" && one.name === name;
  if (key === null) return isName(node);
  if (node.kind === "attribute") return isName(node.of) && node.name === key;
  if (node.kind !== "item" || node.key.kind !== "const") return false;
  return isName(node.of) && node.key.value === key;
}

function nameOf(target: Target): string {
  if (target.kind !== "name") throw new NotOneName();
  return target.name;
}

/**
 * Yields `messages` and the names of variables assigned from it, directly or through other
 * variables.
 */
function* messageLists({ sets }: Tree): Generator<string> {
  yield "messages";
  const waiting = ["messages"];
  const seen = new Set(waiting);
  for (let name = waiting.shift(); name !== undefined; name = waiting.shift()) {
    for (const { target, value } of sets) {
      if (!isAccess(value, name, null)) continue;
      const found = nameOf(target);
      yield found;
      if (!seen.has(found)) waiting.push(found);
      seen.add(found);
    }
  }
}

function messageNames(tree: Tree): string[] {
  const lists = [...messageLists(tree)];
  return tree.loops.flatMap(({ iter, target }) =>
    lists.some((list) => isAccess(iter, list, null)) ? [nameOf(target)] : [],
  );
}

function contentLoops(tree: Tree): boolean {
  const names = messageNames(tree);
  const isContent = (node: Expr) => names.some((name) => isAccess(node, name, "content"));
  const fed = new Map(tree.macros.map((macro) => [macro, fedParameters(tree, macro, isContent)]));
  return tree.loops.some((loop) => {
    const { iter, target } = loop;
    const around = tree.loopsInMacros.get(loop) ?? [];
    const isFound =
      isContent(iter) ||
      (iter.kind === "name" &&
        (around.some((macro) => fed.get(macro)!.has(iter.name)) ||
          (around.length === 0 && iter.name === "content")));
    if (isFound) nameOf(target);
    return isFound;
  });
}

/** Returns the parameters of a macro that receive a message's content in at least one call. */
function fedParameters(
  { calls }: Tree,
  { name, parameters }: MacroNode,
  isContent: (node: Expr) => boolean,
): ReadonlySet<string> {
  const fed = new Set<string>();
  for (const { of, args, kwargs } of calls) {
    if (of.kind !== "name" || of.name !== name) continue;
    for (const [i, arg] of args.slice(0, parameters.length).entries()) {
      if (isContent(arg)) fed.add(parameters[i].name);
    }
    for (const { key, value } of kwargs) {
      if (parameters.some((one) => one.name === key) && isContent(value)) fed.add(key);
    }
  }
  return fed;
}
