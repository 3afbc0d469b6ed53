import { describe, expect, test } from "bun:test";
import { faultsOf, type Schema } from "../json-schema.ts";
import { serveRouter } from "./serve.ts";

interface Content {
  readonly schema: Schema & { readonly examples?: unknown[] };
  readonly examples?: Record<string, { readonly value: unknown }>;
}
interface Operation {
  readonly summary?: string;
  readonly parameters?: readonly { readonly name: string; readonly example?: unknown }[];
  readonly requestBody?: { readonly content: Record<string, Content> };
  readonly responses: Record<string, { readonly content?: Record<string, Content> }>;
}

const served = serveRouter();
const described = JSON.parse(await (await served.get("/openapi/json")).text());
const operations = Object.entries(
  described.paths as Record<string, Record<string, Operation>>,
).flatMap(([path, methods]) =>
  Object.entries(methods).map(
    ([method, operation]) => [`${method.toUpperCase()} ${path}`, operation] as const,
  ),
);

function schemaOf({ schema }: Content): Content["schema"] {
  const name = /^#\/components\/schemas\/(\w+)$/.exec(String(schema.$ref))?.[1];
  return name === undefined ? schema : described.components.schemas[name];
}

describe("the description of a router's API", () => {
  test.each(operations)(
    "%s has a summary, and examples that match its schema",
    (_name, operation) => {
      expect(operation.summary?.length ?? 0).toBeGreaterThan(15);
      const contents = [
        operation.requestBody?.content ?? {},
        ...Object.values(operation.responses).map(({ content = {} }) => content),
      ].flatMap((content) => Object.values(content));
      for (const content of contents) {
        const schema = schemaOf(content);
        const examples = [
          ...(schema.examples ?? []),
          ...Object.values(content.examples ?? {}).map(({ value }) => value),
        ];
        for (const example of examples) expect(faultsOf(schema, example)).toEqual([]);
        expect(examples.length).toBeGreaterThan(0);
      }
      for (const { example } of operation.parameters ?? []) expect(example).toBeDefined();
    },
  );
});
