# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A chat template that renders text, tools and thinking as Gemma 4's does, written for the tests.

By Gemma 4 Prompt Formatting (ai.google.dev/gemma/docs/core) and by what the templates released
with the checkpoints render; test/fixtures/chat.json has recorded what those make of the same
conversations. The released ones take images, audio, video and older forms of history as well.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from gemma_mtp_ros.demo import TARGET_DIR
from gemma_mtp_ros.engine.text import Text

_HEAD = """\
{%- set q = '<|"|>' -%}

{%- macro value(v, quoted) -%}
    {%- if v is none -%} null
    {%- elif v is boolean -%} {{- v | string | lower -}}
    {%- elif v is string -%} {{- q ~ v ~ q -}}
    {%- elif v is mapping -%} {{- '{' ~ pairs(v, quoted) ~ '}' -}}
    {%- elif v is iterable -%}
        {{- '[' -}}
        {%- for x in v -%} {{- ',' if not loop.first -}} {{- value(x, quoted) -}} {%- endfor -%}
        {{- ']' -}}
    {%- else -%} {{- v -}}
    {%- endif -%}
{%- endmacro -%}

{%- macro pairs(object, quoted) -%}
    {%- for k, x in object | dictsort -%}
        {{- ',' if not loop.first -}}
        {{- (q ~ k ~ q) if quoted else k -}} : {{- value(x, quoted) -}}
    {%- endfor -%}
{%- endmacro -%}

{%- macro upper(kind) -%}
    {{- value(kind | upper if kind is string else kind | map('upper') | list, true) -}}
{%- endmacro -%}

{%- macro items(schema) -%}
    {%- for k, x in schema | dictsort if x is not none -%}
        {{- ',' if not loop.first -}} {{- k -}} :
        {%- if k == 'properties' -%} {{- '{' ~ properties(x) ~ '}' -}}
        {%- elif k == 'type' -%} {{- upper(x) -}}
        {%- else -%} {{- value(x, true) -}}
        {%- endif -%}
    {%- endfor -%}
{%- endmacro -%}

{%- macro properties(schemas) -%}
    {%- for name, s in schemas | dictsort -%}
        {%- set kind = s.type | upper -%}
        {%- set p = namespace(text='') -%}
        {%- if s.description -%}
            {%- set p.text = p.text ~ 'description:' ~ value(s.description, true) ~ ',' -%}
        {%- endif -%}
        {%- if kind == 'STRING' and s.enum -%}
            {%- set p.text = p.text ~ 'enum:' ~ value(s.enum, true) ~ ',' -%}
        {%- elif kind == 'ARRAY' and s['items'] -%}
            {%- set p.text = p.text ~ 'items:{' ~ items(s['items']) ~ '},' -%}
        {%- endif -%}
        {%- if s.nullable -%} {%- set p.text = p.text ~ 'nullable:true,' -%} {%- endif -%}
        {%- if kind == 'OBJECT' -%}
            {%- set p.text = p.text ~ 'properties:{' ~ properties(s.properties or {}) ~ '},' -%}
            {%- if s.required -%}
                {%- set p.text = p.text ~ 'required:' ~ value(s.required, true) ~ ',' -%}
            {%- endif -%}
        {%- endif -%}
        {{- ',' if not loop.first -}}
        {{- name ~ ':{' ~ p.text ~ 'type:' ~ q ~ kind ~ q ~ '}' -}}
    {%- endfor -%}
{%- endmacro -%}

{%- macro declaration(f) -%}
    {{- '<|tool>declaration:' ~ f.name ~ '{description:' ~ q ~ f.description ~ q -}}
    {%- set s = f.parameters -%}
    {{- ',parameters:{' -}}
    {%- if s.properties -%} {{- 'properties:{' ~ properties(s.properties) ~ '},' -}} {%- endif -%}
    {%- if s.required -%} {{- 'required:' ~ value(s.required, true) ~ ',' -}} {%- endif -%}
    {{- 'type:' ~ upper(s.type) ~ '}}<tool|>' -}}
{%- endmacro -%}

{%- macro spoken(text) -%}
    {%- set said = namespace(text='') -%}
    {%- for part in text.split('<channel|>') -%}
        {%- set said.text = said.text ~ part.split('<|channel>')[0] -%}
    {%- endfor -%}
    {{- said.text | trim -}}
{%- endmacro -%}

{{- bos_token -}}
{%- set thinking = enable_thinking | default(false) -%}
{%- set instructed = messages[0].role in ['system', 'developer'] -%}
{%- set turns = messages[1:] if instructed else messages -%}
{%- if thinking or tools or instructed -%}
    {{- '<|turn>system\\n' -}}
    {{- '<|think|>\\n' if thinking -}}
    {{- messages[0].content | trim if instructed -}}
    {%- for tool in tools or [] -%} {{- declaration(tool.function) -}} {%- endfor -%}
    {{- '<turn|>\\n' -}}
{%- endif -%}
{%- set at = namespace(user=-1, before='', responded=false, after='', called=false) -%}
{%- for m in turns -%}
    {%- if m.role == 'user' -%} {%- set at.user = loop.index0 -%} {%- endif -%}
{%- endfor -%}
"""

_TURNS_WITH_TOOL_ROLE = """\
{%- for m in turns -%}
    {%- set i = loop.index0 -%}
    {%- if m.role != 'tool' -%}
    {%- set at.responded = false -%}
    {%- set at.called = false -%}
    {%- set at.after = '' -%}
    {%- for other in turns[i + 1:] if other.role != 'tool' and not at.after -%}
        {%- set at.after = other.role -%}
    {%- endfor -%}
    {%- set model = m.role == 'assistant' -%}
    {%- if not (model and at.before == 'assistant') -%}
        {{- '<|turn>' ~ ('model' if model else m.role) ~ '\\n' -}}
    {%- endif -%}
    {%- if m.reasoning and i > at.user -%}
        {{- '<|channel>thought\\n' ~ m.reasoning ~ '\\n<channel|>' -}}
    {%- endif -%}
    {%- for call in m.tool_calls or [] -%}
        {%- set at.called = true -%}
        {{- '<|tool_call>call:' ~ call.function.name ~ '{' -}}
        {{- pairs(call.function.arguments, false) ~ '}<tool_call|>' -}}
    {%- endfor -%}
    {%- if at.called -%}
        {%- set stop = namespace(here=false) -%}
        {%- for answer in turns[i + 1:] -%}
            {%- if answer.role != 'tool' -%} {%- set stop.here = true -%} {%- endif -%}
            {%- if not stop.here -%}
                {%- set at.responded = true -%}
                {{- '<|tool_response>response:' ~ answer.name ~ '{value:' -}}
                {{- value(answer.content, false) ~ '}<tool_response|>' -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {%- set said = spoken(m.content) if model else m.content | trim -%}
    {{- said -}}
    {%- if at.called and not at.responded -%} {{- '<|tool_response>' -}}
    {%- elif model and at.after == 'assistant' -%}
    {%- elif said or at.after or not at.responded -%} {{- '<turn|>\\n' -}}
    {%- endif -%}
    {%- set at.before = m.role -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {%- if at.responded -%} {{- '<|channel>thought\\n' if thinking -}}
    {%- elif not at.called -%}
        {{- '<|turn>model\\n' -}}
        {{- '<|channel>thought\\n<channel|>' if closes_thinking and not thinking -}}
    {%- endif -%}
{%- endif -%}
"""

_TURNS_WITH_RESPONSES = """\
{%- for m in turns -%}
    {%- set at.responded = false -%}
    {{- '<|turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\\n' -}}
    {%- for call in m.tool_calls or [] -%}
        {{- '<|tool_call>call:' ~ call.function.name ~ '{' -}}
        {{- pairs(call.function.arguments, false) ~ '}<tool_call|>' -}}
    {%- endfor -%}
    {%- for answer in m.tool_responses or [] -%}
        {%- set at.responded = true -%}
        {{- '<|tool_response>response:' ~ answer.name ~ '{value:' -}}
        {{- value(answer.response, false) ~ '}<tool_response|>' -}}
    {%- endfor -%}
    {{- spoken(m.content) if m.role == 'assistant' else m.content | trim -}}
    {{- '<turn|>\\n' if m.content or not at.responded -}}
{%- endfor -%}
{%- if add_generation_prompt and not at.responded -%} {{- '<|turn>model\\n' -}} {%- endif -%}
"""

_CLOSES = "{%- set closes_thinking = true -%}\n"

SMALL = _HEAD + _TURNS_WITH_TOOL_ROLE
"""As E2B and E4B have it since July 2026."""
LARGE = _CLOSES + SMALL
"""As 12B, 26B-A4B and 31B have it: an empty channel keeps the model from thinking."""
FIRST = _HEAD + _TURNS_WITH_RESPONSES
"""As first released in April 2026: without a tool role."""


def text_with(template: str, folder: Path) -> Text:
    """The embedded pair's tokenizer, which has Gemma 4's markers, with another template."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TARGET_DIR / name, folder / name)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return Text(folder)
