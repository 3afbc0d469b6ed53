import { type TSchema, t } from "elysia";

export const count = (description: string) => t.Number({ minimum: 0, multipleOf: 1, description });
export const bytes = (description: string) => count(`${description}, bytes`);
export const seconds = (description: string) =>
  t.Number({ minimum: 0, description: `${description}, seconds` });

/** 32 bytes in hex. */
export const hex32 = (description: string) => t.String({ pattern: "^[0-9a-f]{64}$", description });

/** One of some words. The framework alone would lose the type of a computed list. */
export const oneOf = <const Word extends string>(words: readonly Word[], description?: string) =>
  t.Unsafe<Word>(
    t.Union(
      words.map((word) => t.Literal(word)),
      description === undefined ? {} : { description },
    ),
  );

/**
 * A union with null as JSON Schema defines it. The framework's own type uses OpenAPI 3.0 syntax.
 */
export const nullable = <T extends TSchema>(schema: T, description?: string) =>
  t.Union([schema, t.Null()], description === undefined ? {} : { description });

const LIMIT_MAX = 1_000;

/** Maximum number of entries of a page. */
export const limitQuery = (description: string) =>
  t.Optional(
    t.Numeric({ minimum: 1, maximum: LIMIT_MAX, multipleOf: 1, default: 100, description }),
  );

/** Number of the entry after which a page starts. */
export const afterQuery = (description: string) =>
  t.Optional(
    t.Numeric({
      minimum: 0,
      maximum: Number.MAX_SAFE_INTEGER,
      multipleOf: 1,
      default: 0,
      description,
    }),
  );

/** `after` of the next page. */
export const nextNumber = nullable(count("`after` of the next page; null: no more entries"));

type Snake<Name extends string> = Name extends `${infer First}${infer Rest}`
  ? `${First extends Lowercase<First> ? First : `_${Lowercase<First>}`}${Snake<Rest>}`
  : "";

/** The members of an object under the names that they have in JSON: `usedBytes` as `used_bytes`. */
export function snakeCase<Given extends object>(
  value: Given,
): { [Name in keyof Given & string as Snake<Name>]: Given[Name] } {
  const members = Object.entries(value).map(([name, member]) => {
    return [name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`), member];
  });
  return Object.fromEntries(members);
}
