import type { Kind } from "./kinds.ts";

/**
 * What a command takes under one name. Flags are declared in camelCase and written in kebab-case:
 * `blockBytes` is `--block-bytes`.
 */
export interface Flag<T> {
  readonly help: string;
  /** Null: a switch, which takes no value. */
  readonly kind: Kind<unknown> | null;
  /** What the command gets where the flag is not given; absent: the flag must be given. */
  readonly standard: { readonly value: T } | null;
  /** Shown in help; null where there is nothing to show. */
  readonly standardText: string | null;
  /** May be given several times; the value is a list. */
  readonly repeated: boolean;
}

/** An argument without a name, by its place. */
export interface Argument<T> {
  readonly help: string;
  readonly kind: Kind<unknown>;
  readonly presence: "required" | "optional" | "rest";
  /** Never there at run time: carries the type. */
  readonly type?: T;
}

export type FlagTable = Readonly<Record<string, Flag<unknown>>>;
export type ArgumentTable = Readonly<Record<string, Argument<unknown>>>;

export type FlagValues<Table> = {
  readonly [Name in keyof Table]: Table[Name] extends Flag<infer T> ? T : never;
};
export type ArgumentValues<Table> = {
  readonly [Name in keyof Table]: Table[Name] extends Argument<infer T> ? T : never;
};

/** Null where it is not given. */
export function optional<T>(kind: Kind<T>, help: string): Flag<T | null> {
  return { help, kind, standard: { value: null }, standardText: null, repeated: false };
}

export function withDefault<T>(kind: Kind<T>, value: T, help: string): Flag<T> {
  return { help, kind, standard: { value }, standardText: kind.show(value), repeated: false };
}

export function required<T>(kind: Kind<T>, help: string): Flag<T> {
  return { help, kind, standard: null, standardText: null, repeated: false };
}

/** May be given several times; an empty list where it is not. */
export function repeated<T>(kind: Kind<T>, help: string): Flag<readonly T[]> {
  return { help, kind, standard: { value: [] }, standardText: null, repeated: true };
}

/** On or off, off unless given. */
export function toggle(help: string): Flag<boolean> {
  return { help, kind: null, standard: { value: false }, standardText: null, repeated: false };
}

export const jsonFlag = toggle("print results as JSON, one document a line");

export function requiredArgument<T>(kind: Kind<T>, help: string): Argument<T> {
  return { help, kind, presence: "required" };
}

export function optionalArgument<T>(kind: Kind<T>, help: string): Argument<T | null> {
  return { help, kind, presence: "optional" };
}

/** All arguments that are left; the last one of a command. */
export function restArguments<T>(kind: Kind<T>, help: string): Argument<readonly T[]> {
  return { help, kind, presence: "rest" };
}

/** `blockBytes` → `--block-bytes`. */
export function flagName(name: string): string {
  return `--${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
}
