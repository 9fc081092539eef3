#!/usr/bin/env bash
# One gate with all its files, annotations on stdout, the summary of the job, and the exit code of the gate.
set -uo pipefail
folder="${RUNNER_TEMP:-.}/costproof-gate"
mkdir -p "$folder"
rm -f "$folder"/*
sides=("$BASE" "$HEAD" ${CONFIG:+--config "$CONFIG"})
costproof -q gate "${sides[@]}" --policy "$POLICY" -f github \
  -o "$folder/gate.md" -o "$folder/gate.json" -o "$folder/gate.xml" -o "$folder/gate.sarif" 2> "$folder/errors.txt"
code=$?
cat "$folder/errors.txt" >&2
if [ -f "$folder/gate.md" ]; then
  # A comment may be of 60 kB and a summary of 1,024 kB: both texts fit.
  costproof -q diff "${sides[@]}" -f md -o "$folder/diff.md" || true
  cat "$folder/gate.md" "$folder/diff.md" >> "$GITHUB_STEP_SUMMARY"
else
  echo "::error title=costproof gate::$(head -n 1 "$folder/errors.txt")"
fi
echo "folder=$folder" >> "$GITHUB_OUTPUT"
echo "exit-code=$code" >> "$GITHUB_OUTPUT"
exit "$code"
