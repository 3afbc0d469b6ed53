import { t } from "elysia";

export const count = (description: string) => t.Number({ minimum: 0, multipleOf: 1, description });
export const bytes = (description: string) => count(`${description}, bytes`);
