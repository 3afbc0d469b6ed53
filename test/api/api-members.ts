import type { Schema } from "./json-schema.ts";

interface Content {
  readonly schema: Schema;
}

interface Operation {
  readonly parameters?: readonly { name: string; in: string; required?: boolean; schema: Schema }[];
  readonly requestBody?: { readonly content: Record<string, Content> };
  readonly responses: Record<string, { readonly content?: Record<string, Content> }>;
}

/** An OpenAPI document, reduced to the parts that a client depends on. */
export interface ApiDocument {
  readonly paths: Record<string, Record<string, Operation>>;
  readonly components: { readonly schemas?: Record<string, Schema> };
}

/** Keywords that describe a value and do not restrict it. */
const NOTES: ReadonlySet<string> = new Set([
  ...["description", "title", "example", "examples"],
  // The framework sets it with the first validated answer.
  "additionalProperties",
]);
const NESTED: ReadonlySet<string> = new Set(["properties", "items", "anyOf", "patternProperties"]);

/** One line, in order of their texts, for each parameter, and for each member of each body: its path and its limits. */
export function apiMembers({ paths, components }: ApiDocument): string {
  const lines: string[] = [];
  const walk = (schema: Schema, at: string, isRequired: boolean): void => {
    const limits = Object.entries(schema)
      .filter(([word]) => !NOTES.has(word) && !NESTED.has(word) && word !== "required")
      .map(([word, value]) => ` ${word}=${JSON.stringify(value)}`)
      .sort();
    lines.push(`${at}${isRequired ? "" : "?"}${limits.join("")}`);
    const required = (schema.required ?? []) as string[];
    for (const table of [schema.properties, schema.patternProperties]) {
      const members = Object.entries((table ?? {}) as Record<string, Schema>);
      for (const [member, one] of members.sort(([a], [b]) => (a < b ? -1 : 1))) {
        walk(one, `${at}.${member}`, required.includes(member));
      }
    }
    if (schema.items !== undefined) walk(schema.items as Schema, `${at}[]`, true);
    for (const [i, one] of ((schema.anyOf ?? []) as Schema[]).entries()) {
      walk(one, `${at}|${i}`, true);
    }
  };
  for (const [path, methods] of Object.entries(paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const route = `${method.toUpperCase()} ${path}`;
      for (const { name, in: place, required, schema } of operation.parameters ?? []) {
        walk(schema, `${route} ${place} ${name}`, required === true);
      }
      const bodies = Object.entries(operation.requestBody?.content ?? {});
      for (const [type, { schema }] of bodies) walk(schema, `${route} body ${type}`, true);
      for (const [status, { content }] of Object.entries(operation.responses)) {
        if (content === undefined) lines.push(`${route} ${status}`);
        for (const [type, { schema }] of Object.entries(content ?? {})) {
          walk(schema, `${route} ${status} ${type}`, true);
        }
      }
    }
  }
  for (const [name, schema] of Object.entries(components.schemas ?? {})) walk(schema, name, true);
  return `${lines.sort().join("\n")}\n`;
}
