import { Undefined, type Value } from "../python/index.ts";

/** Variables of a block; those around it are seen and not changed. */
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
