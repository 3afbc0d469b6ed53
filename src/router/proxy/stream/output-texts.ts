type Fields = Readonly<Record<string, unknown>>;

/** What a worker wrote to the first choice, in one event or at once. */
export interface OutputPart {
  readonly reasoning: string;
  readonly content: string;
  /** Where it tells them: vLLM with `return_token_ids`. */
  readonly tokens: readonly number[];
}

/** Of whole events, or of an answer that is no stream. What cannot be read says nothing. */
export function outputParts(text: string, isStream: boolean): OutputPart[] {
  const values = isStream
    ? text.split(/\r?\n/).flatMap((line) => (line.startsWith("data:") ? [line.slice(5)] : []))
    : [text];
  return values.flatMap((value) => {
    try {
      const { choices } = JSON.parse(value) as { choices?: unknown };
      const choice: unknown = Array.isArray(choices) ? choices[0] : null;
      return isFields(choice) && (choice.index ?? 0) === 0 ? [partOf(choice)] : [];
    } catch {
      return [];
    }
  });
}

function partOf(choice: Fields): OutputPart {
  const inner = choice.delta ?? choice.message;
  const fields = isFields(inner) ? inner : {};
  const tokens = Array.isArray(choice.token_ids) ? choice.token_ids : [];
  return {
    // vLLM renamed it; SGLang has the older name.
    reasoning: textOf(fields.reasoning ?? fields.reasoning_content),
    content: textOf(choice.text ?? fields.content),
    tokens: tokens.filter((token) => Number.isInteger(token) && token >= 0),
  };
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
