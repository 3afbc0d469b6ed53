import { type TSchema, t } from "elysia";

export const count = (description: string) => t.Number({ minimum: 0, multipleOf: 1, description });
export const bytes = (description: string) => count(`${description}, bytes`);
export const seconds = (description: string) =>
  t.Number({ minimum: 0, description: `${description}, seconds` });

/** As JSON Schema says it; the framework's own says it in words of OpenAPI 3.0. */
export const nullable = <T extends TSchema>(schema: T) => t.Union([schema, t.Null()]);

const LIMIT_MAX = 1_000;

/** How much of a list a request wants. */
export const limitQuery = (description: string) =>
  t.Optional(
    t.Numeric({ minimum: 1, maximum: LIMIT_MAX, multipleOf: 1, default: 100, description }),
  );

/** Behind which number of a list. */
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
export const nextNumber = nullable(count("`after` of the next page; null: that was all"));
