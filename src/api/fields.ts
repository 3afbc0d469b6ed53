import { type TSchema, t } from "elysia";

export const count = (description: string) => t.Number({ minimum: 0, multipleOf: 1, description });
export const bytes = (description: string) => count(`${description}, bytes`);
export const seconds = (description: string) =>
  t.Number({ minimum: 0, description: `${description}, seconds` });

/**
 * A union with null as JSON Schema defines it. The framework's own type uses OpenAPI 3.0 syntax.
 */
export const nullable = <T extends TSchema>(schema: T) => t.Union([schema, t.Null()]);

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
