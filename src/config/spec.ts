import type { MachineFacts } from "./facts.ts";
import type { Kind, TomlLiteral } from "./kinds.ts";

/** What a default may be worked out from. */
export interface DeriveContext {
  readonly facts: MachineFacts;
  /** The value of a key that `needs` names; of an optional one that is unset, null. */
  value<Value>(key: string): Value;
}

/** What holds where the file does not say. */
export type Standard<Value> =
  | { readonly is: "literal"; readonly literal: TomlLiteral }
  | {
      readonly is: "derived";
      readonly words: string;
      /** Dotted names of keys whose values `from` asks for. */
      readonly needs: readonly string[];
      /** Undefined where it cannot be worked out; null, of an optional key: it stays unset. */
      from(context: DeriveContext): Value | undefined;
    }
  | { readonly is: "unset" }
  | { readonly is: "required" };

/** One key: all that parser, types, reference page, sample file and reload need to know of it. */
export interface KeySpec<Value> {
  /** Its name in the file. */
  readonly key: string;
  readonly kind: Kind<Value>;
  readonly standard: Standard<Value>;
  /** Whether SIGHUP may change it; everything else waits for a restart. */
  readonly reload: boolean;
  /** One paragraph: what it does and when to change it. */
  readonly doc: string;
  readonly example: TomlLiteral;
  /** A second way to write the same value; a file uses one of the two. */
  readonly also?: {
    readonly key: string;
    readonly kind: Kind<Value>;
    readonly doc: string;
    readonly example: TomlLiteral;
  };
}

export interface SectionSpec<Keys> {
  readonly doc: string;
  readonly keys: Keys;
}

type AnyKeys = Readonly<Record<string, KeySpec<unknown>>>;

/** Gives a section its exact type while holding it to the shape of one. */
export function section<const Keys extends AnyKeys>(doc: string, keys: Keys): SectionSpec<Keys> {
  return { doc, keys };
}

type Words = Pick<KeySpec<unknown>, "key" | "doc" | "reload">;

/** A key with a default that is written in the file's own words. */
export function withDefault<Value>(
  spec: Words & { kind: Kind<Value>; standard: TomlLiteral; example?: TomlLiteral },
): KeySpec<Value> {
  return {
    ...spec,
    standard: { is: "literal", literal: spec.standard },
    example: spec.example ?? spec.standard,
  };
}

/** A key that may stay unset; its value is then null. */
export function optional<Value>(
  spec: Words & { kind: Kind<Value>; example: TomlLiteral },
): KeySpec<Value | null> {
  return { ...spec, kind: spec.kind as Kind<Value | null>, standard: { is: "unset" } };
}
