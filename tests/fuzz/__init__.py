"""Fuzzers: what is stored is changed at random, and whatever is read is a value or a named error, in bounded time.

python -m tests.fuzz serde --seconds 3600           values, as the serializer packs them
python -m tests.fuzz sqlite --seconds 3600          or files, postgres, redis: stored bytes of a small store
python -m tests.fuzz stores --seconds 3600          or imports: stores that are copied, or moved in from LangGraph's
python -m tests.fuzz serde --seed 0 --trial 1234    one trial again, with its traceback
"""
