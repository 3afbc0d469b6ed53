import { t } from "elysia";

export const count = (description: string) => t.Number({ minimum: 0, multipleOf: 1, description });
export const bytes = (description: string) => count(`${description}, bytes`);
export const seconds = (description: string) =>
  t.Number({ minimum: 0, description: `${description}, seconds` });

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
export const nextNumber = t.Nullable(count("`after` of the next page; null: that was all"));
