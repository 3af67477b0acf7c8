"""Fuzzers: change stored data at random; reading must yield a value or a named error.

A trial also has limits of time and memory.

python -m tests.fuzz serde --seconds 3600           values, as the serializer packs them
python -m tests.fuzz sqlite --seconds 3600          or files, postgres, redis: stored bytes of a small store
python -m tests.fuzz stores --seconds 3600          or imports: stores that are copied, or imported from LangGraph
python -m tests.fuzz serde --seed 0 --trial 1234    one trial again, with its traceback
"""
