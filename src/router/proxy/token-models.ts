import type { ProxyOptions } from "./proxy.ts";
import type { ProxyModel } from "./settings.ts";
import { checkTokenModel, openTokens, type TokenModelFiles, type Tokens } from "./tokens/index.ts";

/** What engines put between the texts of one message. */
const PART_SEPARATORS = { vllm: "\n", sglang: " " } as const;

/** Reads the tokenizers of models. Rejects with CONFIG_INVALID where one cannot be used. */
export function tokensFor(
  { clock, settings, onTokens }: Pick<ProxyOptions, "clock" | "settings" | "onTokens">,
  models: readonly ProxyModel[],
): Promise<Tokens> {
  return openTokens({
    clock,
    models: tokenFiles(models),
    onFailed: (model, why) => onTokens?.failed(model, why),
    threads: settings.tokenThreads,
    cacheTokens: settings.tokenCacheTokens,
    timeMs: settings.tokeniseMs,
  });
}

/** Throws CONFIG_INVALID, with the file's name, where `tokensFor` would reject. */
export function checkModels(models: readonly ProxyModel[]): void {
  for (const files of tokenFiles(models)) checkTokenModel(files);
}

function tokenFiles(models: readonly ProxyModel[]): TokenModelFiles[] {
  return models.flatMap(({ name, tokenizer, chatTemplate, engine, reasoning, templateKwargs }) => {
    if (tokenizer === null) return [];
    const partSeparator = PART_SEPARATORS[engine];
    return [{ name, tokenizer, chatTemplate, reasoning, templateKwargs, partSeparator }];
  });
}
