import { PythonError, type Value } from "../python/index.ts";
import { Budget, RENDER_LIMITS, type RenderLimits } from "./budget.ts";
import { Evaluator } from "./evaluator.ts";
import { globals } from "./globals.ts";
import { Interpreter } from "./interpreter.ts";
import type { Body } from "./nodes.ts";
import { parseTemplate } from "./parser.ts";
import { Scope } from "./scope.ts";
import { walksContent } from "./walks-content.ts";

export interface RenderOptions {
  readonly limits?: RenderLimits;
  /** For `strftime_now`. */
  readonly now: () => Date;
}

/** A chat template, rendered as transformers renders it. */
export class Template {
  readonly #body: Body;

  /** Throws TemplateSyntaxError. */
  constructor(source: string) {
    this.#body = parseTemplate(source);
  }

  /** Whether it walks through the parts of a message's content, as vLLM finds it out. */
  get wantsParts(): boolean {
    return walksContent(this.#body);
  }

  /** Throws PythonError where the engine would refuse, and where the limits are used up. */
  render(variables: Iterable<readonly [string, Value]>, options: RenderOptions): string {
    const budget = new Budget(options.limits ?? RENDER_LIMITS);
    const outer = new Scope(null, globals(budget, options.now));
    const scope = new Scope(new Scope(outer, variables));
    try {
      return new Interpreter(new Evaluator(budget)).text(this.#body, scope);
    } catch (thrown) {
      // Blocks in blocks in macros: the stack of this thread ends before the limits do.
      if (thrown instanceof RangeError) throw new PythonError("maximum recursion depth exceeded");
      throw thrown;
    }
  }
}
